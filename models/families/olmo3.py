"""OLMo 3 (OLMo Team 2025): OLMo 2 with sliding windows.

By default three of four layers have a window. Only layers without a window scale their rotary positions for long texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig, QueryKeyNorm
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import (
    GgufFamily,
    Settings,
    has_bias,
    layer_types,
    rms_eps,
    rotary_settings,
    sliding_window,
    with_ropes_by_type,
)
from models.families.shared.rope import rope_config, with_rope_of
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    llama_decoder,
    rms_norm,
    rotary_rules,
)
from models.families.shared.windows import patterned_windows
from weights.gguf.metadata import Metadata

_THETA = 500000.0


_DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "sliding_window_pattern": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(with_rope_of(hf, "full_attention", hf.get("rope_theta") or _THETA), defaults=_DEFAULTS)
    sliding_fields = Fields(with_rope_of(hf, "sliding_attention", _THETA), defaults=_DEFAULTS)
    fields.refuse_unless("sliding_window_pattern", 4)
    head_dim, bias = head_dim_of(fields), fields.flag("attention_bias", False)
    full_rope, sliding_rope = rope_config(fields, head_dim), rope_config(sliding_fields, head_dim)
    windows = patterned_windows(fields, fields.optional_integer("sliding_window", absent=4096))
    return llama_decoder(
        fields,
        gated_feed_forward(fields),
        windows=windows,
        ropes=[full_rope if window is None else sliding_rope for window in windows],
        rope=full_rope,
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=QueryKeyNorm(rms_norm(fields), "all"),
        norm_slots=("output",),
    )


def gguf_settings(of: Metadata) -> Settings:
    settings = rotary_settings(
        of,
        model_type="olmo3",
        attention_bias=has_bias(of, "attn_q"),
        sliding_window=sliding_window(of),
        layer_types=layer_types(of),
        **rms_eps(of),
    )
    return with_ropes_by_type(of, settings)


FAMILY = decoder_family(
    "olmo3",
    "Olmo3",
    config,
    rotary_rules,
    tokens=False,
    answers=False,
    pad_token_id=1,
    gguf=GgufFamily({"olmo2": gguf_settings}, lambda of: sliding_window(of) is not None),
)
