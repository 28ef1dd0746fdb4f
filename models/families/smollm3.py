"""SmolLM3 (Bakouch et al. 2025): LLaMA with layers that have no positions (Yang et al. 2025, arXiv:2501.18795).

By default every fourth layer has no positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ConfigError, ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, paired_neighbours, rms_eps, rotary_settings
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    llama_decoder,
    rotary_rules,
)
from models.families.shared.windows import switched_window, windows_by_type
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "max_position_embeddings": 32768,
    "no_rope_layer_interval": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 2000000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    rope, bias = rope_config(fields, head_dim_of(fields)), fields.flag("attention_bias", False)
    # Null means one head of keys and values per query head; absent means four heads.
    kv_heads = fields.optional_integer("num_key_value_heads", absent=4) or fields.integer("num_attention_heads")
    rotates = _rotating_layers(fields)
    width = switched_window(fields, absent=None)
    windows = windows_by_type(fields, width, lambda index: rotates[index] or width is None)
    return llama_decoder(
        fields,
        gated_feed_forward(fields, bias=fields.flag("mlp_bias", False)),
        windows=windows,
        ropes=[rope if rotating else None for rotating in rotates],
        rope=rope,
        num_kv_heads=kv_heads,
        default_tied=True,
        qkv_bias=bias,
        output_bias=bias,
    )


def _rotating_layers(fields: Fields) -> list[bool]:
    """Whether each layer has rotary positions. Despite its name, `no_rope_layers` has 1 for layers with positions."""
    layers, flags = fields.integer("num_hidden_layers"), fields.raw("no_rope_layers")
    if flags is None:
        every = fields.integer("no_rope_layer_interval")
        return [(index + 1) % every != 0 for index in range(layers)]
    if not isinstance(flags, list) or len(flags) < layers or any(flag not in (0, 1) for flag in flags):
        raise ConfigError(f"'no_rope_layers' must be 0 or 1 for each of {layers} layers")
    return [bool(flag) for flag in flags[:layers]]


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(of, model_type="smollm3", **rms_eps(of))


FAMILY = decoder_family(
    "smollm3",
    "SmolLM3",
    config,
    rotary_rules,
    pad_token_id=128004,
    gguf=GgufFamily({"smollm3": gguf_settings}, rules=paired_neighbours),
)
