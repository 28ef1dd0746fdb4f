"""Qwen3 (Yang et al. 2025, arXiv:2505.09388): Qwen2 with norms of queries and keys instead of their biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig, QueryKeyNorm
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, rms_eps, rotary_settings
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    rms_norm,
    rotary_decoder,
    rotary_layer,
    rotary_rules,
)
from models.families.shared.windows import upper_windows
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "head_dim": 128,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    head_dim, norm, bias = head_dim_of(fields), rms_norm(fields), fields.flag("attention_bias", False)
    rope = rope_config(fields, head_dim)
    feed_forward = gated_feed_forward(fields)
    layers = [
        rotary_layer(
            fields,
            head_dim=head_dim,
            num_kv_heads=fields.integer("num_key_value_heads"),
            rope=rope,
            norm=norm,
            feed_forward=feed_forward,
            window=window,
            qkv_bias=bias,
            output_bias=bias,
            query_key_norm=QueryKeyNorm(norm),
        )
        for window in upper_windows(fields, absent=4096)
    ]
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings"))
    return rotary_decoder(fields, layers, norm, max_positions)


def gguf_settings(of: Metadata) -> Settings:
    bias = of.has("blk.0.attn_q.bias")
    return rotary_settings(of, model_type="qwen3", use_sliding_window=False, attention_bias=bias, **rms_eps(of))


FAMILY = decoder_family(
    "qwen3",
    "Qwen3",
    config,
    rotary_rules,
    gguf=GgufFamily(dict.fromkeys(("qwen3", "qwen3vl"), gguf_settings)),
)
