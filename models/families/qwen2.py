"""Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv:2407.10671): LLaMA with biases on queries, keys and values, and a
sliding window over some layers when asked for."""

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
    return rotary_decoder(
        fields,
        windows=upper_windows(fields, hf.get("layer_types")),
        num_kv_heads=fields.integer("num_key_value_heads", 32),
        max_positions=fields.integer("max_position_embeddings", 32768),
        qkv_bias=True,
    )


FAMILY = with_heads(
    "Qwen2",
    Family(
        name="qwen2",
        model_types=("qwen2",),
        architectures={"Qwen2ForCausalLM": ("generate",)},
        config=config,
        rules=rules,
    ),
)
