"""LFM2 (Liquid AI 2025, arXiv:2511.23404): gated short convolutions in most layers, attention in the other layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import FeedForwardConfig, ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings
from models.families.shared.short_convolution_decoder import (
    short_convolution_decoder,
    short_convolution_gguf_rules,
    short_convolution_gguf_settings,
    short_convolution_rules,
    with_tied_name,
)
from weights.gguf.metadata import Metadata

_DEFAULTS = {
    "vocab_size": 65536,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128000,
    "conv_L_cache": 3,
    "norm_eps": 1e-05,
    "rope_theta": 1000000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(with_tied_name(hf), defaults=_DEFAULTS)
    feed_forward = FeedForwardConfig(_intermediate_size(fields), "silu", gated=True, bias=False)
    layers = fields.integer("num_hidden_layers")
    return short_convolution_decoder(fields, [feed_forward] * layers, _default_types(fields, layers))


def _intermediate_size(fields: Fields) -> int:
    """Width of the feed-forward, from `block_ff_dim` or `intermediate_size`.

    Unless `block_auto_adjust_ff_dim` is false, the width is two thirds of the setting. It is then multiplied by
    `block_ffn_dim_multiplier` and rounded up to a multiple of `block_multiple_of`, unless the multiplier is null.
    """
    size = fields.optional_integer("block_ff_dim") or fields.integer("intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(2 * size / 3)
    if fields.raw("block_ffn_dim_multiplier", 1.0) is None:
        return size
    size = int(fields.positive("block_ffn_dim_multiplier", 1.0) * size)
    multiple = fields.integer("block_multiple_of", 256)
    return multiple * -(-size // multiple)


def _default_types(fields: Fields, layers: int) -> list[str]:
    """Types of the layers in older files: attention in the layers that `full_attn_idxs` lists, convolutions elsewhere.

    Without the setting, all layers have attention.
    """
    stated = fields.integers("full_attn_idxs")
    attending = range(layers) if stated is None else stated
    return ["full_attention" if index in attending else "conv" for index in range(layers)]


def gguf_settings(of: Metadata) -> Settings:
    return short_convolution_gguf_settings(of, model_type="lfm2", block_auto_adjust_ff_dim=False)


FAMILY = decoder_family(
    "lfm2",
    "Lfm2",
    config,
    short_convolution_rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"lfm2": gguf_settings}, rules=short_convolution_gguf_rules),
)
