"""Seed-OSS (ByteDance Seed 2025): LLaMA with biases of queries, keys and values."""

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
    fields = Fields(hf, defaults={"vocab_size": 155136, "num_attention_heads": 80})
    head_dim, norm = head_dim_of(fields, fields.raw("head_dim", 128)), rms_norm(fields)
    rope = rope_config(fields, head_dim)
    # Null means one head for keys and values per query head; absent means eight heads.
    kv_heads = fields.integer("num_attention_heads") if "num_key_value_heads" in hf else 8
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", kv_heads),
        rope=rope,
        norm=norm,
        feed_forward=gated_feed_forward(
            fields, fields.integer("intermediate_size", 27648), fields.flag("mlp_bias", False)
        ),
        qkv_bias=fields.flag("attention_bias", True),
        output_bias=fields.flag("attention_out_bias", False),
    )
    layers = (layer,) * fields.integer("num_hidden_layers", 64)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 524288))
    return rotary_decoder(fields, layers, norm, max_positions)


FAMILY = decoder_family(
    "seed_oss",
    "SeedOss",
    config,
    rotary_rules,
    pad_token_id=1,
)
