"""Granite: LLaMA that scales embeddings, attention scores, sublayer results and logits by factors in the settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from models.config import FeedForwardConfig, MixtureOfExpertsConfig, ModelConfig
from models.families.shared.fields import Fields
from models.families.shared.gguf import Settings, has_bias, rms_eps
from models.families.shared.rotary_decoder import llama_decoder
from weights.gguf.metadata import Metadata


def granite_decoder(
    fields: Fields,
    feed_forward: FeedForwardConfig | MixtureOfExpertsConfig,
    *,
    default_scale: float = 1.0,
    logit_scale: float | None = None,
    norm_slots: Sequence[Literal["input", "output"]] = ("input",),
) -> ModelConfig:
    """Configuration of a Granite decoder.

    feed_forward: feed-forward of every layer.
    default_scale: factor of the attention scores if the file has no `attention_multiplier`.
    logit_scale: factor of the logits; None to divide them by `logits_scaling`.
    norm_slots: places of the norms in each sublayer.
    """
    bias = fields.flag("attention_bias", False)
    return llama_decoder(
        fields,
        feed_forward,
        qkv_bias=bias,
        output_bias=bias,
        scale=fields.positive("attention_multiplier", default_scale),
        residual_scale=fields.positive("residual_multiplier", 1.0),
        embedding_scale=fields.positive("embedding_multiplier", 1.0),
        logit_scale=logit_scale or 1.0 / fields.positive("logits_scaling", 1.0),
        norm_slots=norm_slots,
    )


def granite_gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` that all Granite models have, from GGUF metadata."""
    return {
        "attention_multiplier": of.number("attention.scale", 1.0),
        "embedding_multiplier": of.number("embedding_scale", 1.0),
        "residual_multiplier": of.number("residual_scale", 1.0),
        "logits_scaling": of.number("logit_scale", 1.0),
        "attention_bias": has_bias(of, "attn_q"),
        **rms_eps(of),
    }


def shared_width(of: Metadata) -> int:
    """Width of the shared expert, which processes every token, from GGUF metadata; 0 without a shared expert."""
    return of.integer("expert_shared_feed_forward_length", 0)
