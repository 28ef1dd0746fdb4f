"""EXAONE 4 (LG AI Research 2025, arXiv:2507.11407): LLaMA with norms of sublayer outputs instead of inputs.

Queries and keys are normed as well. In models with sliding windows, the layers without a window have no positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig, QueryKeyNorm
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, layer_types, rms_eps, rotary_settings, sliding_window
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    rms_norm,
    rotary_decoder,
    rotary_layer,
    rotary_rules,
)
from models.families.shared.windows import patterned_windows, windows_by_type
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 2048,
    "sliding_window_pattern": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    head_dim, norm = head_dim_of(fields), rms_norm(fields)
    rope = rope_config(fields, head_dim)
    feed_forward = gated_feed_forward(fields)
    width = fields.optional_integer("sliding_window", absent=4096)
    is_hybrid = width is not None
    windows = patterned_windows(fields, width) if is_hybrid else windows_by_type(fields, None, lambda index: True)
    layers = [
        rotary_layer(
            fields,
            head_dim=head_dim,
            num_kv_heads=fields.integer("num_key_value_heads"),
            rope=None if is_hybrid and window is None else rope,
            norm=norm,
            feed_forward=feed_forward,
            window=window,
            query_key_norm=QueryKeyNorm(norm),
            norm_slots=("output",),
        )
        for window in windows
    ]
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings"))
    return rotary_decoder(fields, layers, norm, max_positions)


def gguf_settings(of: Metadata) -> Settings:
    window = sliding_window(of)
    kinds = layer_types(of) if window else ["full_attention"] * of.layers
    return rotary_settings(of, model_type="exaone4", sliding_window=window, layer_types=kinds, **rms_eps(of))


FAMILY = decoder_family(
    "exaone4",
    "Exaone4",
    config,
    rotary_rules,
    gguf=GgufFamily({"exaone4": gguf_settings}),
)
