"""Command R7B and Command A (Cohere 2025, arXiv:2504.00698): Command R with sliding windows.

Layers with a window have rotary positions. Layers without a window, by default every fourth layer, have full attention
and no positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig, NormConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from models.families.shared.gguf import GgufFamily, Settings, has_bias, layer_eps, layer_types, rotary_settings
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    llama_decoder,
    rotary_rules,
)
from models.families.shared.windows import patterned_windows
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "sliding_window_pattern": 4,
    "hidden_act": "silu",
    "layer_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "logit_scale": 0.0625,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    heads, bias = fields.integer("num_attention_heads"), fields.flag("attention_bias", False)
    head_dim = head_width(fields.integer("hidden_size"), heads)
    fields.refuse_unless("head_dim", head_dim)
    rope = rope_config(fields, head_dim, pairing="interleaved")
    windows = patterned_windows(fields, fields.optional_integer("sliding_window", absent=4096))
    return llama_decoder(
        fields,
        gated_feed_forward(fields),
        windows=windows,
        ropes=[None if window is None else rope for window in windows],
        rope=rope,
        norm=NormConfig("layer", fields.number("layer_norm_eps"), bias=False),
        head_dim=head_dim,
        default_tied=True,
        logit_scale=fields.positive("logit_scale"),
        qkv_bias=bias,
        output_bias=bias,
        parallel=True,
    )


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(
        of,
        model_type="cohere2",
        attention_bias=has_bias(of, "attn_q"),
        layer_norm_eps=layer_eps(of),
        logit_scale=of.number("logit_scale"),
        sliding_window=of.integer("attention.sliding_window"),
        layer_types=layer_types(of),
    )


FAMILY = decoder_family(
    "cohere2",
    "Cohere2",
    config,
    rotary_rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"cohere2": gguf_settings}),
)
