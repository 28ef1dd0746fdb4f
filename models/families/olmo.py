"""OLMo (Groeneveld et al. 2024, arXiv:2402.00838): LLaMA with layer norms that have no weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig, NormConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    rotary_decoder,
    rotary_layer,
    rotary_rules,
)


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults={"vocab_size": 50304})
    head_dim, norm, bias = head_dim_of(fields), NormConfig("layer_unscaled", 1e-5), fields.flag("attention_bias", False)
    rope = rope_config(fields, head_dim)
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads", 32)),
        rope=rope,
        norm=norm,
        feed_forward=gated_feed_forward(fields, fields.integer("intermediate_size", 11008)),
        qkv_bias=bias,
        output_bias=bias,
        clip=fields.optional_positive("clip_qkv"),
    )
    layers = (layer,) * fields.integer("num_hidden_layers", 32)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 2048))
    return rotary_decoder(fields, layers, norm, max_positions)


FAMILY = decoder_family(
    "olmo",
    "Olmo",
    config,
    rotary_rules,
    tokens=False,
    answers=False,
    pad_token_id=1,
)
