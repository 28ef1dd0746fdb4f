"""UMT5 (Chung et al. 2023, arXiv:2304.09151): mT5 with position buckets of its own in every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import LanguageModelHead, ModelConfig, PoolingHead
from models.families.family import Family
from models.families.fields import Fields
from models.families.t5_heads import with_t5_heads
from models.families.t5_layers import TOKENS, t5_model, t5_rules
from models.generation_defaults import GenerationDefaults
from weights.rules import Rule

_DEFAULTS = {
    "vocab_size": 250112,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields({**_DEFAULTS, **hf})
    head = PoolingHead() if architecture == "UMT5EncoderModel" else _head(fields)
    return t5_model(fields, head, bias_per_layer=True)


def _head(fields: Fields) -> LanguageModelHead:
    """Tied logits are scaled, published ones are neither. transformers 5 takes all for tied when it scales, and still
    keeps a table of their own where the checkpoint has one; see docs/decisions/0013."""
    tied = fields.flag("tie_word_embeddings", True)
    return LanguageModelHead(tied=False, scale=fields.integer("d_model") ** -0.5 if tied else 1.0)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return t5_rules(model)


FAMILY = with_t5_heads(
    "UMT5",
    Family(
        name="umt5",
        model_types=("umt5",),
        architectures={"UMT5ForConditionalGeneration": ("generate", "translate"), "UMT5EncoderModel": ("embed",)},
        config=config,
        rules=rules,
        generation=GenerationDefaults(end_token_ids=(1,), pad_token_id=0, decoder_start_token_ids=(0,)),
        tied_if_absent={"head.weight": TOKENS},
        refused_dtypes={"float16": "T5's feed-forward sums exceed float16; use bfloat16 or float32"},
    ),
)
