"""OLMo 2 (OLMo et al. 2025, arXiv:2501.00656): LLaMA with norms of sublayer outputs, queries and keys.

Sublayers have no input norms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig, QueryKeyNorm
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
    fields = Fields(hf)
    head_dim, norm, bias = head_dim_of(fields), rms_norm(fields, 1e-5), fields.flag("attention_bias", False)
    rope = rope_config(fields, head_dim)
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads", 32)),
        rope=rope,
        norm=norm,
        feed_forward=gated_feed_forward(fields, fields.integer("intermediate_size")),
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=QueryKeyNorm(norm, "all"),
        norm_slots=("output",),
    )
    layers = (layer,) * fields.integer("num_hidden_layers", 32)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 2048))
    return rotary_decoder(fields, layers, norm, max_positions)


FAMILY = decoder_family(
    "olmo2",
    "Olmo2",
    config,
    rotary_rules,
    answers=False,
    tokens=False,
    pad_token_id=1,
)
