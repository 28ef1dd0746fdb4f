"""BART (Lewis et al. 2019, arXiv:1910.13461): summarization, denoising, classification and question answering."""

from __future__ import annotations

from collections.abc import Mapping
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
from models.families.shared.bart_rules import post_norm_rules
from models.families.shared.family import Family


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = bart_fields(hf)
    refuse_variants(fields, pre_norm=False, embedding_norm=True, sinusoidal_positions=False)
    fields.refuse_unless("tie_word_embeddings", True)
    embedding = bart_embedding(fields, LearnedPositions(fields.integer("max_position_embeddings")), NORM)
    start = fields.integer("decoder_start_token_id", 2, least=0)
    return bart_model(fields, bart_head(fields, architecture, start, default_labels=3), *both_stacks(fields, embedding))


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
    rules=post_norm_rules,
    zero_if_absent=frozenset({"head.bias"}),
)
