"""Granite 3 (Granite Team 2024): LLaMA with factors of embeddings, scores, sublayer results and logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.granite import granite_decoder
from models.families.shared.rotary_decoder import gated_feed_forward, rotary_rules


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults={"vocab_size": 32000})
    width, bias = fields.integer("intermediate_size", 11008), fields.flag("mlp_bias", False)
    return granite_decoder(fields, gated_feed_forward(fields, width, bias))


FAMILY = decoder_family(
    "granite",
    "Granite",
    config,
    rotary_rules,
    texts=False,
    tokens=False,
    answers=False,
)
