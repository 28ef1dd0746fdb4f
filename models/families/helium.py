"""Helium (Kyutai 2025): LLaMA in whose heads neighbouring dimensions rotate together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
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


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults={"vocab_size": 48000, "hidden_size": 2560, "num_attention_heads": 20})
    head_dim, norm = head_dim_of(fields, 128), rms_norm(fields, 1e-8)
    rope = rope_config(fields, head_dim, 100000.0, pairing="interleaved")
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", 20),
        rope=rope,
        norm=norm,
        feed_forward=gated_feed_forward(
            fields, fields.integer("intermediate_size", 7040), fields.flag("mlp_bias", False)
        ),
        qkv_bias=fields.flag("attention_bias", False),
    )
    layers = (layer,) * fields.integer("num_hidden_layers", 24)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 4096))
    return rotary_decoder(fields, layers, norm, max_positions)


FAMILY = decoder_family(
    "helium",
    "Helium",
    config,
    rotary_rules,
    answers=False,
    pad_token_id=3,
)
