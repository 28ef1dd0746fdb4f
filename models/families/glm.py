"""GLM-4 of 2024 (GLM Team 2024, arXiv:2406.12793), in the layout of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.glm import PAD_TOKEN_ID, glm_decoder, glm_rules


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    return glm_decoder(hf, ("input",))


FAMILY = decoder_family(
    "glm",
    "Glm",
    config,
    glm_rules,
    answers=False,
    pad_token_id=PAD_TOKEN_ID,
)
