"""Configuration of EuroBERT's encoder: LLaMA with bidirectional attention (Boizard et al. 2025, arXiv:2503.05500)."""

from __future__ import annotations

from models.config import ModelConfig
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import (
    gated_feed_forward,
    head_dim_of,
    rms_norm,
    rotary_decoder,
    rotary_layer,
)

DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def eurobert_encoder(fields: Fields) -> ModelConfig:
    """Configuration of the encoder with a masked language model head.

    fields: settings in which `is_causal` is false, with `DEFAULTS` as defaults.
    """
    head_dim, norm, bias = head_dim_of(fields), rms_norm(fields), fields.flag("attention_bias", False)
    rope, inner = rope_config(fields, head_dim), fields.integer("intermediate_size")
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads")),
        rope=rope,
        norm=norm,
        feed_forward=gated_feed_forward(fields, inner, bias=fields.flag("mlp_bias", False)),
        qkv_bias=bias,
        output_bias=bias,
    )
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings"))
    layers = (layer,) * fields.integer("num_hidden_layers")
    return rotary_decoder(fields, layers, norm, max_positions, logit_bias=fields.flag("mlp_bias", False))
