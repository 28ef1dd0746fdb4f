"""Granite: LLaMA whose embeddings, scores, sublayer results and logits have factors of their own."""

from __future__ import annotations

from models.config import FeedForwardConfig, MixtureOfExpertsConfig, ModelConfig
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import head_dim_of, rms_norm, rotary_decoder, rotary_layer


def granite_decoder(fields: Fields, feed_forward: FeedForwardConfig | MixtureOfExpertsConfig) -> ModelConfig:
    """A decoder whose layers all have this feed-forward."""
    head_dim, norm, bias = head_dim_of(fields), rms_norm(fields), fields.flag("attention_bias", False)
    rope = rope_config(fields, head_dim)
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads", 32)),
        rope=rope,
        norm=norm,
        feed_forward=feed_forward,
        qkv_bias=bias,
        output_bias=bias,
        scale=fields.positive("attention_multiplier", 1.0),
        residual_scale=fields.positive("residual_multiplier", 1.0),
    )
    return rotary_decoder(
        fields,
        (layer,) * fields.integer("num_hidden_layers", 32),
        norm,
        scaled_max_positions(rope, fields.integer("max_position_embeddings", 2048)),
        embedding_scale=fields.positive("embedding_multiplier", 1.0),
        logit_scale=1.0 / fields.positive("logits_scaling", 1.0),
    )
