"""T5 (Raffel et al. 2020, arXiv:1910.10683), versions 1.0 and 1.1: FLAN, UL2 and ByT5 are checkpoints of it."""

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
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "feed_forward_proj": "relu",
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields({**_DEFAULTS, **hf})
    return t5_model(fields, PoolingHead() if architecture == "T5EncoderModel" else _head(fields))


def _head(fields: Fields) -> LanguageModelHead:
    """Version 1.0 ties the logits to the embeddings and scales them; 1.1 does neither.

    transformers 5 writes the scaling as `scale_decoder_outputs`; before, `tie_word_embeddings` told the versions apart.
    """
    tied = fields.flag("tie_word_embeddings", True)
    scaled = fields.flag("scale_decoder_outputs", tied)
    return LanguageModelHead(tied=tied and scaled, scale=fields.integer("d_model") ** -0.5 if scaled else 1.0)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return t5_rules(model)


FAMILY = with_t5_heads(
    "T5",
    Family(
        name="t5",
        model_types=("t5",),
        architectures={
            "T5ForConditionalGeneration": ("generate", "translate"),
            "T5WithLMHeadModel": ("generate", "translate"),
            "T5EncoderModel": ("embed",),
        },
        config=config,
        rules=rules,
        generation=GenerationDefaults(end_token_ids=(1,), pad_token_id=0, decoder_start_token_ids=(0,)),
        # transformers 5 saves a version 1.1 whose logits were never untied without its `lm_head`.
        tied_if_absent={"head.weight": TOKENS},
        refused_dtypes={"float16": "T5's feed-forward sums exceed float16; use bfloat16 or float32"},
    ),
)
