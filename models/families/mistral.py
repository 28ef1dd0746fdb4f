"""Mistral (Jiang et al. 2023, arXiv:2310.06825): LLaMA with a sliding window in all layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.rotary_decoder import gated_feed_forward, rotary_rules, uniform_decoder

_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    fields.refuse_unless("layer_types")
    # Only an explicit null switches the window off. An absent setting means the width of the first release.
    window = fields.optional_integer("sliding_window", absent=4096)
    return uniform_decoder(fields, gated_feed_forward(fields), window=window)


FAMILY = decoder_family(
    "mistral",
    "Mistral",
    config,
    rotary_rules,
)
