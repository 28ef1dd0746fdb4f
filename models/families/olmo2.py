"""OLMo 2 (OLMo et al. 2025, arXiv:2501.00656): LLaMA with norms behind its sublayers and over queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig, NormConfig
from models.families.decoder_heads import with_heads
from models.families.family import Family
from models.families.fields import Fields
from models.families.rotary_decoder import rotary_decoder, rules


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    attention_bias = fields.flag("attention_bias", False)
    return rotary_decoder(
        fields,
        windows=(None,) * fields.integer("num_hidden_layers", 32),
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads", 32)),
        max_positions=fields.integer("max_position_embeddings", 2048),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        norm=NormConfig("rms", fields.number("rms_norm_eps", 1e-5), bias=False),
        slots=("output",),
        query_key_norms="all",
    )


FAMILY = with_heads(
    "Olmo2",
    Family(
        name="olmo2",
        model_types=("olmo2",),
        architectures={"Olmo2ForCausalLM": ("generate",)},
        config=config,
        rules=rules,
    ),
    answers=False,
    tokens=False,
    pad_token_id=1,
)
