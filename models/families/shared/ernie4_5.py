"""ERNIE 4.5: LLaMA with biases everywhere or nowhere. Rotary positions rotate pairs of neighbouring dimensions."""

from __future__ import annotations

from collections.abc import Callable

from models.config import FeedForwardConfig, MixtureOfExpertsConfig, ModelConfig
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import head_dim_of, rms_norm, rotary_decoder, rotary_layer


def ernie4_5_decoder(
    fields: Fields,
    feed_forward_of: Callable[[int], FeedForwardConfig | MixtureOfExpertsConfig],
    default_head_dim: int | None = None,
    logit_bias: bool = False,
) -> ModelConfig:
    """The configuration of an ERNIE 4.5 decoder.

    feed_forward_of: returns the feed-forward of the layer with a given index.
    default_head_dim: width of a head if the file does not state it; None for `hidden_size / num_attention_heads`.
    logit_bias: whether the logits have a bias.
    """
    head_dim, norm, bias = head_dim_of(fields, default_head_dim), rms_norm(fields), fields.flag("use_bias", False)
    rope = rope_config(fields, head_dim, pairing="interleaved")
    layers = [
        rotary_layer(
            fields,
            head_dim=head_dim,
            num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads")),
            rope=rope,
            norm=norm,
            feed_forward=feed_forward_of(index),
            qkv_bias=bias,
            output_bias=bias,
        )
        for index in range(fields.integer("num_hidden_layers"))
    ]
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings"))
    return rotary_decoder(fields, layers, norm, max_positions, default_tied=True, logit_bias=logit_bias)
