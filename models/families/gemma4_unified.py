"""Gemma 4 12B (Gemma Team 2026), text part: Gemma 4 without encoders for pictures and sound.

Checkpoints are served without the layers that embed pictures and sound. This changes nothing for requests with text
only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.gemma4_text import gemma4_config, gemma4_rules
from weights.rules import Rule

_MULTIMODAL = "Gemma4UnifiedForConditionalGeneration"


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    return gemma4_config(hf, architecture == _MULTIMODAL, default_max_positions=262144, window=1024)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    others = "vision_embedder|embed_vision|embed_audio"
    return gemma4_rules(model, hf, architecture, architecture == _MULTIMODAL, others)


FAMILY = decoder_family(
    "gemma4_unified",
    "Gemma4UnifiedText",
    config,
    rules,
    model_types=("gemma4_unified_text", "gemma4_unified"),
    generating=("Gemma4UnifiedForCausalLM", _MULTIMODAL),
    texts=False,
    tokens=False,
    answers=False,
)
