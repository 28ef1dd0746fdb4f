"""AFM (Arcee AI 2025): LLaMA with squared ReLU and without gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import FeedForwardConfig, ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import head_dim_of, rms_norm, rotary_decoder, rotary_layer, rotary_rules


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults={"vocab_size": 32000, "hidden_size": 2560})
    head_dim, norm, bias = head_dim_of(fields), rms_norm(fields, 1e-5), fields.flag("attention_bias", False)
    rope = rope_config(fields, head_dim)
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads", 32)),
        rope=rope,
        norm=norm,
        feed_forward=FeedForwardConfig(
            fields.integer("intermediate_size", 18432),
            fields.activation("hidden_act", "relu2"),
            bias=fields.flag("mlp_bias", False),
        ),
        qkv_bias=bias,
        output_bias=bias,
    )
    layers = (layer,) * fields.integer("num_hidden_layers", 32)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 4096))
    return rotary_decoder(fields, layers, norm, max_positions)


FAMILY = decoder_family(
    "arcee",
    "Arcee",
    config,
    rotary_rules,
)
