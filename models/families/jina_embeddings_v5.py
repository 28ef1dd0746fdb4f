"""Jina Embeddings 5 (Jina AI 2026): Qwen3 (`-small`) or EuroBERT (`-nano`), with a LoRA adapter for each task.

Both models have the same `model_type` and architecture, and come with their own code. The setting `is_decoder` tells
them apart: `-nano` states false, `-small` does not state it. The adapters are in `adapters/<task>`, in the format of
peft; see docs/adapters.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.config import ModelConfig, PoolingHead
from models.families.shared import eurobert_layers
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.published_code import PublishedCode
from models.families.shared.qwen3_layers import DEFAULTS as QWEN3_DEFAULTS
from models.families.shared.qwen3_layers import qwen3_decoder
from models.families.shared.rotary_decoder import headless_rules

_PUBLISHED = PublishedCode("jinaai", "", "JinaEmbeddingsV5", module=r"\w+")


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    published = Fields(hf, _PUBLISHED)
    encoder = not published.flag("is_decoder", True)
    published.refuse_unless("is_causal", not encoder)
    settings = {name: value for name, value in hf.items() if name not in ("auto_map", "is_decoder")}
    settings["is_causal"] = not encoder
    if encoder:
        model = eurobert_layers.eurobert_encoder(Fields(settings, defaults=eurobert_layers.DEFAULTS))
    else:
        model = qwen3_decoder(Fields(settings, defaults=QWEN3_DEFAULTS), window=4096)
    return replace(model, head=PoolingHead())


FAMILY = Family(
    name="jina_embeddings_v5",
    model_types=("jina_embeddings_v5",),
    architectures={"JinaEmbeddingsV5Model": ("embed",)},
    config=_config,
    rules=headless_rules,
)
