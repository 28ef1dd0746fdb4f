"""Gemma (Gemma Team 2024, arXiv:2403.08295): LLaMA with scaled embeddings and a GELU gate.

Its norms multiply by one plus their weights.
"""

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
    # Files of the first release have `gelu` here, but the models were trained with its tanh approximation.
    gate = "gelu_pytorch_tanh" if hf.get("hidden_act") in (None, "gelu") else hf["hidden_act"]
    fields = Fields({**hf, "hidden_act": gate})
    fields.refuse_unless("hidden_activation", gate)
    fields.refuse_unless("use_bidirectional_attention", False)
    head_dim, bias = head_dim_of(fields, 256), fields.flag("attention_bias", False)
    norm = rms_norm(fields, kind="rms_from_one")
    rope = rope_config(fields, head_dim)
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", 16),
        rope=rope,
        norm=norm,
        feed_forward=gated_feed_forward(fields, fields.integer("intermediate_size")),
        qkv_bias=bias,
        output_bias=bias,
    )
    return rotary_decoder(
        fields,
        (layer,) * fields.integer("num_hidden_layers", 28),
        norm,
        scaled_max_positions(rope, fields.integer("max_position_embeddings", 8192)),
        default_tied=True,
        embedding_scale=fields.integer("hidden_size", 4096) ** 0.5,
    )


FAMILY = decoder_family(
    "gemma",
    "Gemma",
    config,
    rotary_rules,
    answers=False,
    pad_token_id=0,
)
