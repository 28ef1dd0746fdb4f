"""Granite with sliding windows and attention sinks (Granite Team 2026). Each layer may have a rotary base of its own.

Three of four layers have a window. A base of 0 stands for a layer without positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import ConfigError, ModelConfig, RopeConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
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
from weights.rules import Rename, Rule

_DEFAULTS = {
    "vocab_size": 100352,
    "hidden_size": 2560,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 20,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    norm, head_dim, bias = rms_norm(fields), head_dim_of(fields), fields.flag("attention_bias", False)
    rope, feed_forward = rope_config(fields, head_dim), gated_feed_forward(fields, bias=fields.flag("mlp_bias", False))
    # Null means one head of keys and values per query head; absent means four heads.
    heads = fields.optional_integer("num_key_value_heads", absent=4) or fields.integer("num_attention_heads")
    layers = [
        rotary_layer(
            fields,
            head_dim=head_dim,
            num_kv_heads=heads,
            rope=own,
            norm=norm,
            feed_forward=feed_forward,
            window=window,
            qkv_bias=bias,
            output_bias=bias,
            scale=fields.positive("attention_multiplier", 1.0),
            residual_scale=fields.positive("residual_multiplier", 1.0),
            sinks=True,
        )
        for window, own in zip(_windows(fields), _ropes(fields, rope), strict=True)
    ]
    return rotary_decoder(
        fields,
        layers,
        norm,
        scaled_max_positions(rope, fields.integer("max_position_embeddings")),
        default_tied=True,
        embedding_scale=fields.positive("embedding_multiplier", 1.0),
        logit_scale=1.0 / fields.positive("logits_scaling", 1.0),
    )


def _windows(fields: Fields) -> list[int | None]:
    layers, window = fields.integer("num_hidden_layers"), fields.optional_integer("sliding_window", absent=128)
    layer_types = fields.raw("layer_types")
    if layer_types is None:
        layer_types = ["sliding_attention" if index % 4 else "full_attention" for index in range(layers)]
    return typed_windows(layer_types, layers, window)


def _ropes(fields: Fields, rope: RopeConfig) -> list[RopeConfig | None]:
    """Rotary positions of each layer: those of the file with the base of the layer, None for a base of 0."""
    layers, bases = fields.integer("num_hidden_layers"), fields.raw("layer_rope_theta")
    if bases is None:
        return [rope] * layers
    listed = bases if isinstance(bases, list) else []
    good = all(isinstance(one, int | float) and not isinstance(one, bool) and one >= 0 for one in listed)
    if len(listed) != layers or not good:
        raise ConfigError(f"'layer_rope_theta' must be a list of {layers} numbers of at least 0")
    return [replace(rope, theta=float(base)) if base else None for base in listed]


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (
        Rename(r"model\.layers\.(\d+)\.self_attn\.sinks", r"decoder.layers.\1.attention.sinks"),
        *rotary_rules(model, hf, architecture),
    )


FAMILY = decoder_family(
    "granite_swa",
    "GraniteSWA",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
)
