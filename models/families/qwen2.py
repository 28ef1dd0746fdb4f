"""Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv:2407.10671): LLaMA with biases on queries, keys and values, and a
sliding window over some layers when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ConfigError, ModelConfig
from models.families.family import Family
from models.families.fields import Fields
from models.families.rotary_decoder import rotary_decoder, rules


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    return rotary_decoder(
        fields,
        windows=_windows(fields, hf.get("layer_types")),
        num_kv_heads=fields.integer("num_key_value_heads", 32),
        max_positions=fields.integer("max_position_embeddings", 32768),
        qkv_bias=True,
    )


def _windows(fields: Fields, layer_types: Any) -> list[int | None]:
    layers = fields.integer("num_hidden_layers", 32)
    window = fields.optional_integer("sliding_window", absent=4096)
    if not fields.flag("use_sliding_window", False):
        window = None
    if layer_types is None:
        full = fields.integer("max_window_layers", 28, least=0)
        return [window if index >= full else None for index in range(layers)]
    known = ("full_attention", "sliding_attention")
    if not isinstance(layer_types, list) or len(layer_types) != layers or any(k not in known for k in layer_types):
        raise ConfigError(f"'layer_types' must name full_attention or sliding_attention for each of {layers} layers")
    if "sliding_attention" in layer_types and window is None:
        raise ConfigError("'layer_types' has sliding_attention, but 'use_sliding_window' or 'sliding_window' is unset")
    return [window if kind == "sliding_attention" else None for kind in layer_types]


FAMILY = Family(
    name="qwen2",
    model_types=("qwen2",),
    architectures={"Qwen2ForCausalLM": ("generate",)},
    config=config,
    rules=rules,
)
