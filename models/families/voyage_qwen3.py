"""Open embedding models of Voyage AI (voyage-4-nano, 2026): Qwen3 as an encoder with an output projection.

The setting `num_labels` is the width of the projected vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import ModelConfig, PoolingHead
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.published_code import PublishedCode
from models.families.shared.qwen3_layers import DEFAULTS, qwen3_decoder
from models.families.shared.rotary_decoder import headless_rules
from weights.rules import Rename, Rule

_PUBLISHED = PublishedCode("voyageai", "", "VoyageQwen3Bidirectional(?:Embed)?", module=r"\w+")


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    given = Fields(hf, _PUBLISHED)
    given.refuse_unless("is_causal", False)
    given.refuse_unless("use_bidirectional_attention", True)
    settings = {name: value for name, value in hf.items() if name != "auto_map"}
    model = qwen3_decoder(Fields({**settings, "is_causal": False}, defaults=DEFAULTS), window=4096)
    assert model.encoder is not None
    return replace(model, head=PoolingHead(), encoder=replace(model.encoder, output_width=given.labels()))


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (Rename(r"linear\.weight", "encoder.output_projection.weight"), *headless_rules(model, hf, architecture))


FAMILY = Family(
    name="voyage_qwen3",
    model_types=("voyage_qwen3",),
    architectures={"VoyageQwen3BidirectionalEmbedModel": ("embed",)},
    config=_config,
    rules=_rules,
    published_as={"qwen3": _PUBLISHED},
)
