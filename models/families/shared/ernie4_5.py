"""ERNIE 4.5: LLaMA with biases everywhere or nowhere. Rotary positions rotate pairs of neighbouring dimensions."""

from __future__ import annotations

from collections.abc import Callable

from models.config import FeedForwardConfig, MixtureOfExpertsConfig, ModelConfig
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import head_dim_of, llama_decoder


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
    head_dim, bias = head_dim_of(fields, default_head_dim), fields.flag("use_bias", False)
    return llama_decoder(
        fields,
        [feed_forward_of(index) for index in range(fields.integer("num_hidden_layers"))],
        rope=rope_config(fields, head_dim, pairing="interleaved"),
        head_dim=head_dim,
        default_tied=True,
        logit_bias=logit_bias,
        qkv_bias=bias,
        output_bias=bias,
    )
