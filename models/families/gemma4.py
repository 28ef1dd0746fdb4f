"""Gemma 4 (Gemma Team 2026), text part. Checkpoints with vision and audio are served without these parts.

Leaving out these parts changes nothing for requests without pictures and sound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.gemma4_text import gemma4_config, gemma4_gguf_rules, gemma4_gguf_settings, gemma4_rules
from models.families.shared.gguf import GgufFamily
from weights.rules import Rule

_MULTIMODAL = "Gemma4ForConditionalGeneration"


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    multimodal = architecture == _MULTIMODAL
    return gemma4_config(hf, multimodal, default_max_positions=131072, window=512, default_input_width=256)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    others = "vision_tower|audio_tower|embed_vision|embed_audio"
    return gemma4_rules(model, hf, architecture, architecture == _MULTIMODAL, others)


FAMILY = decoder_family(
    "gemma4",
    "Gemma4Text",
    config,
    rules,
    model_types=("gemma4_text", "gemma4"),
    generating=("Gemma4ForCausalLM", _MULTIMODAL),
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"gemma4": gemma4_gguf_settings}, rules=gemma4_gguf_rules),
)
