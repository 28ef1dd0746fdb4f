"""Embedding models of Perplexity (pplx-embed-v1, 2026): Qwen3 with bidirectional attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.config import ModelConfig, PoolingHead
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.published_code import PublishedCode
from models.families.shared.qwen3_layers import DEFAULTS, qwen3_decoder
from models.families.shared.rotary_decoder import headless_rules

_PUBLISHED = PublishedCode("perplexity-ai", "", "PPLXQwen3")


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    given = Fields(hf, _PUBLISHED)
    given.refuse_unless("is_causal", False)
    given.refuse_unless("use_bidirectional_attention", True)
    settings = {name: value for name, value in hf.items() if name != "auto_map"}
    model = qwen3_decoder(Fields({**settings, "is_causal": False}, defaults=DEFAULTS), window=4096)
    return replace(model, head=PoolingHead())


FAMILY = Family(
    name="bidirectional_pplx_qwen3",
    model_types=("bidirectional_pplx_qwen3",),
    architectures={"PPLXQwen3Model": ("embed",)},
    config=_config,
    rules=headless_rules,
)
