"""BART (Lewis et al. 2019, arXiv:1910.13461): summaries, denoising, and classification by its decoder's last state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import LearnedPositions, ModelConfig
from models.families.shared.bart_config import (
    NORM,
    bart_embedding,
    bart_fields,
    bart_head,
    bart_model,
    both_stacks,
    refuse_variants,
)
from models.families.shared.bart_rules import PREFIX, head_rules, layer_rules, token_rules
from models.families.shared.family import Family
from weights.rules import Rename, Rule, Slice


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = bart_fields(hf)
    refuse_variants(fields, pre_norm=False, embedding_norm=True, sinusoidal_positions=False)
    fields.refuse_unless("tie_word_embeddings", True)
    embedding = bart_embedding(fields, LearnedPositions(fields.integer("max_position_embeddings")), NORM)
    start = fields.integer("decoder_start_token_id", 2, least=0)
    return bart_model(fields, bart_head(fields, architecture, start, default_labels=3), *both_stacks(fields, embedding))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    stack = rf"{PREFIX}(encoder|decoder)\."
    return (
        *token_rules(),
        Slice(stack + r"embed_positions\.weight", r"\1.embedding.positions.weight", start=2),
        Rename(stack + r"layernorm_embedding\.(weight|bias)", r"\1.embedding.norm.\2"),
        *layer_rules(),
        *head_rules(),
    )


FAMILY = Family(
    name="bart",
    model_types=("bart",),
    architectures={
        "BartForConditionalGeneration": ("generate",),
        "BartModel": ("generate",),
        "BartForSequenceClassification": ("classify",),
        "BartForQuestionAnswering": ("question_answer",),
    },
    config=config,
    rules=rules,
    zero_if_absent=frozenset({"head.bias"}),
)
