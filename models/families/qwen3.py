"""Qwen3 (Yang et al. 2025, arXiv:2505.09388): Qwen2 with normalised queries and keys instead of their biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.decoder_heads import with_heads
from models.families.family import Family
from models.families.fields import Fields
from models.families.rotary_decoder import rotary_decoder, rules
from models.families.windows import upper_windows


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    attention_bias = fields.flag("attention_bias", False)
    return rotary_decoder(
        fields,
        windows=upper_windows(fields, hf.get("layer_types")),
        num_kv_heads=fields.integer("num_key_value_heads", 32),
        max_positions=fields.integer("max_position_embeddings", 32768),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        default_head_dim=128,
        query_key_norms="head",
    )


FAMILY = with_heads(
    "Qwen3",
    Family(
        name="qwen3",
        model_types=("qwen3",),
        architectures={"Qwen3ForCausalLM": ("generate",)},
        config=config,
        rules=rules,
    ),
)
