"""LFM3 (Liquid AI 2026): LFM2 with norms of sublayer outputs, and with sliding windows in some layers.

Each attention head has an output gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from models.config import (
    ConfigError,
    FeedForwardConfig,
    LayerConfig,
    ModelConfig,
    NormConfig,
    QueryKeyNorm,
    ShortConvolutionConfig,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.layer_types import layer_types, mixer_layer
from models.families.shared.rope import rope_config, scaled_max_positions, with_rope_of
from models.families.shared.rotary_decoder import head_dim_of, rotary_decoder, rotary_layer
from models.families.shared.short_convolution_decoder import LAYER, OURS, short_convolution_rules
from weights.rules import Rename, Rule, repeat_rows

_KINDS = ("conv", "full_attention", "sliding_attention")
_DEFAULTS = {
    "vocab_size": 128000,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5},
    },
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    settings = {**_DEFAULTS, **{name: value for name, value in hf.items() if value is not None}}
    fields = {
        kind: Fields(with_rope_of(settings, kind, theta))
        for kind, theta in (("full_attention", 1000000.0), ("sliding_attention", 10000.0))
    }
    full = fields["full_attention"]
    slots: tuple[Literal["input", "output"], ...] = ("input",)
    if full.flag("use_sandwich_norm", True):
        slots = ("input", "output")
    if "sliding_window" in hf and hf["sliding_window"] is None:
        raise ConfigError("'sliding_window' must be a number of tokens, not null")
    window = full.integer("sliding_window", 256)
    gated, bias = full.flag("use_attention_gate", True), full.flag("attention_bias", False)
    if gated:
        # The gate has no bias, unlike the queries.
        full.refuse_unless("attention_bias", False)
    head_dim, norm = head_dim_of(full, 128), NormConfig("rms", full.number("norm_eps", 1e-5), bias=False)
    feed_forward = FeedForwardConfig(full.integer("intermediate_size", 7680), "silu", gated=True, bias=False)
    ropes = {kind: rope_config(layer_fields, head_dim) for kind, layer_fields in fields.items()}
    mixer = ShortConvolutionConfig(
        full.integer("hidden_size"), full.integer("conv_L_cache", 7, least=2), full.flag("conv_bias", False)
    )

    def layer(kind: str) -> LayerConfig:
        if kind == "conv":
            return mixer_layer(mixer, norm, feed_forward, norm_slots=slots)
        return rotary_layer(
            full,
            head_dim=head_dim,
            num_kv_heads=full.integer("num_key_value_heads", 4),
            rope=ropes[kind],
            norm=norm,
            feed_forward=feed_forward,
            window=window if kind == "sliding_attention" else None,
            qkv_bias=bias,
            output_bias=bias,
            query_key_norm=QueryKeyNorm(norm),
            norm_slots=slots,
            output_gate=gated,
        )

    count = full.integer("num_hidden_layers")
    kinds = layer_types(full, _KINDS, [_default_kind(index) for index in range(count)], count)
    max_positions = scaled_max_positions(ropes["full_attention"], full.integer("max_position_embeddings", 128000))
    return rotary_decoder(full, [layer(kind) for kind in kinds], norm, max_positions, default_tied=True)


def _default_kind(index: int) -> str:
    if index % 4 == 2:
        return "full_attention"
    return "sliding_attention" if index % 4 == 0 and index > 0 else "conv"


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    widths = [layer.attention.head_dim for layer in model.decoder.layers if layer.attention is not None]
    return (
        # One number per head, which all features of the head share.
        Rule(
            LAYER + r"self_attn\.(?:g_proj|gate_proj)\.weight",
            (OURS + "attention.gate.weight",),
            (repeat_rows(widths[0] if widths else 1),),
        ),
        *(
            Rename(LAYER + rf"self_attn\.{part[0]}_proj\.(weight|bias)", OURS + rf"attention.{part}.\2")
            for part in ("query", "key", "value", "output")
        ),
        Rename(LAYER + r"self_attn\.q_norm\.weight", OURS + "attention.query_norm.weight"),
        Rename(LAYER + r"self_attn\.k_norm\.weight", OURS + "attention.key_norm.weight"),
        Rename(LAYER + r"post_operator_norm\.weight", OURS + "attention_norms.output.weight"),
        Rename(LAYER + r"post_ffn_norm\.weight", OURS + "feed_forward_norms.output.weight"),
        *short_convolution_rules(model, hf, architecture),
    )


FAMILY = decoder_family(
    "lfm3",
    "Lfm3",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
)
