"""Gemma 2 (Gemma Team 2024, arXiv:2408.00118): Gemma with input and output norms in each sublayer.

Every other layer has a sliding window, and attention scores and logits are capped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, query_scalar, rms_eps, rotary_settings
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    rms_norm,
    rotary_decoder,
    rotary_layer,
    rotary_rules,
)
from models.families.shared.windows import typed_windows
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
    "head_dim": 256,
    "query_pre_attn_scalar": 256.0,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields({**hf, "hidden_act": hf.get("hidden_activation") or "gelu_pytorch_tanh"}, defaults=_DEFAULTS)
    fields.refuse_unless("use_bidirectional_attention", False)
    head_dim, bias = head_dim_of(fields), fields.flag("attention_bias", False)
    norm = rms_norm(fields, "rms_from_one")
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
            scale=fields.positive("query_pre_attn_scalar") ** -0.5,
            score_cap=_cap(hf, "attn_logit_softcapping", 50.0),
            norm_slots=("input", "output"),
        )
        for window in _windows(fields)
    ]
    return rotary_decoder(
        fields,
        layers,
        norm,
        scaled_max_positions(rope, fields.integer("max_position_embeddings")),
        default_tied=True,
        embedding_scale=fields.integer("hidden_size") ** 0.5,
        logit_cap=_cap(hf, "final_logit_softcapping", 30.0),
    )


def _cap(hf: Mapping[str, Any], name: str, default: float) -> float | None:
    """The bound of logits or scores that a setting states. Null is no bound; an absent setting is the default."""
    return None if hf.get(name, default) is None else Fields(hf).positive(name, default)


def _windows(fields: Fields) -> list[int | None]:
    layers, window = fields.integer("num_hidden_layers"), fields.optional_integer("sliding_window", absent=4096)
    layer_types = fields.raw("layer_types")
    if layer_types is None:
        layer_types = ["full_attention" if index % 2 else "sliding_attention" for index in range(layers)]
    return typed_windows(layer_types, layers, window)


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(
        of,
        model_type="gemma2",
        sliding_window=of.integer("attention.sliding_window", 4096),
        attn_logit_softcapping=of.number("attn_logit_softcapping", 50.0),
        final_logit_softcapping=of.number("final_logit_softcapping", 30.0),
        query_pre_attn_scalar=query_scalar(of, largest=46),
        **rms_eps(of),
    )


FAMILY = decoder_family(
    "gemma2",
    "Gemma2",
    config,
    rotary_rules,
    refused_dtypes={"float16": "Gemma 2's residual stream can exceed float16; use bfloat16 or float32"},
    answers=False,
    pad_token_id=0,
    gguf=GgufFamily({"gemma2": gguf_settings}),
)
