"""Pegasus (Zhang et al. 2020, arXiv:1912.08777): pre-norm encoder-decoder for summarization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import LanguageModelHead, ModelConfig, SinusoidalPositions
from models.families.shared.bart_config import bart_embedding, bart_fields, bart_model, both_stacks, refuse_variants
from models.families.shared.bart_rules import PREFIX, pre_norm_rules
from models.families.shared.family import Family
from weights.rules import Constant, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = bart_fields(hf)
    refuse_variants(fields, pre_norm=True, embedding_norm=False, sinusoidal_positions=True)
    fields.refuse_unless("tie_word_embeddings", True)
    embedding = bart_embedding(fields, SinusoidalPositions(fields.integer("max_position_embeddings")))
    head = LanguageModelHead(tied=True, bias=True)
    return bart_model(fields, head, *both_stacks(fields, embedding, pre_norm=True))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (
        Constant(rf"{PREFIX}(encoder|decoder)\.embed_positions\.weight", r"\1.embedding.positions"),
        *pre_norm_rules(),
    )


FAMILY = Family(
    name="pegasus",
    model_types=("pegasus",),
    architectures={"PegasusForConditionalGeneration": ("generate",), "PegasusModel": ("generate",)},
    config=config,
    rules=rules,
    zero_if_absent=frozenset({"head.bias"}),
)
