"""Granite: LLaMA whose embeddings, scores, sublayer results and logits have factors of their own."""

from __future__ import annotations

from models.config import FeedForwardConfig, MixtureOfExpertsConfig, ModelConfig
from models.families.shared.fields import Fields
from models.families.shared.rotary_decoder import uniform_decoder


def granite_decoder(fields: Fields, feed_forward: FeedForwardConfig | MixtureOfExpertsConfig) -> ModelConfig:
    """A decoder whose layers all have this feed-forward."""
    bias = fields.flag("attention_bias", False)
    return uniform_decoder(
        fields,
        feed_forward,
        qkv_bias=bias,
        output_bias=bias,
        scale=fields.positive("attention_multiplier", 1.0),
        residual_scale=fields.positive("residual_multiplier", 1.0),
        embedding_scale=fields.positive("embedding_multiplier", 1.0),
        logit_scale=1.0 / fields.positive("logits_scaling", 1.0),
    )
