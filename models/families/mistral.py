"""Mistral (Jiang et al. 2023, arXiv:2310.06825): LLaMA with a sliding window in all layers."""

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
    fields = Fields(hf)
    fields.refuse_unless("layer_types")
    head_dim, norm = head_dim_of(fields), rms_norm(fields)
    rope = rope_config(fields, head_dim)
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", 8),
        rope=rope,
        norm=norm,
        feed_forward=gated_feed_forward(fields, fields.integer("intermediate_size")),
        # Only an explicit null switches the window off. An absent setting means the width of the first release.
        window=fields.optional_integer("sliding_window", absent=4096),
    )
    layers = (layer,) * fields.integer("num_hidden_layers", 32)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 131072))
    return rotary_decoder(fields, layers, norm, max_positions)


FAMILY = decoder_family(
    "mistral",
    "Mistral",
    config,
    rotary_rules,
)
