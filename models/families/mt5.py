"""mT5 (Xue et al. 2021, arXiv:2010.11934): T5 version 1.1 for 101 languages."""

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
    # Never scaled. `tie_word_embeddings` says nothing: transformers 5 writes true for logits of their own as well.
    return t5_model(fields, PoolingHead() if architecture == "MT5EncoderModel" else LanguageModelHead(tied=False))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return t5_rules(model)


FAMILY = with_t5_heads(
    "MT5",
    Family(
        name="mt5",
        model_types=("mt5",),
        architectures={"MT5ForConditionalGeneration": ("generate", "translate"), "MT5EncoderModel": ("embed",)},
        config=config,
        rules=rules,
        generation=GenerationDefaults(end_token_ids=(1,), pad_token_id=0, decoder_start_token_ids=(0,)),
        tied_if_absent={"head.weight": TOKENS},
        refused_dtypes={"float16": "T5's feed-forward sums exceed float16; use bfloat16 or float32"},
    ),
)
