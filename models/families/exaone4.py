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
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    llama_decoder,
    rms_norm,
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
    rope = rope_config(fields, head_dim_of(fields))
    width = fields.optional_integer("sliding_window", absent=4096)
    is_hybrid = width is not None
    windows = patterned_windows(fields, width) if is_hybrid else windows_by_type(fields, None, lambda index: True)
    return llama_decoder(
        fields,
        gated_feed_forward(fields),
        windows=windows,
        ropes=[None if is_hybrid and window is None else rope for window in windows],
        rope=rope,
        num_kv_heads=fields.integer("num_key_value_heads"),
        query_key_norm=QueryKeyNorm(rms_norm(fields)),
        norm_slots=("output",),
    )


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
