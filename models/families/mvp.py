"""MVP (Tang et al. 2022, arXiv:2206.12131): BART after supervised pre-training on many generation tasks."""

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


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = bart_fields(hf, vocab_size=50267)
    refuse_variants(fields, pre_norm=False, embedding_norm=True, sinusoidal_positions=False)
    fields.refuse_unless("tie_word_embeddings", True)
    # Prompts are learned keys and values in each layer, which attention does not have here.
    fields.refuse_unless("use_prompt", False)
    embedding = bart_embedding(fields, LearnedPositions(fields.integer("max_position_embeddings")), NORM)
    start = fields.integer("decoder_start_token_id", 2, least=0)
    head = bart_head(fields, architecture, start, default_end_token_id=2)
    return bart_model(fields, head, *both_stacks(fields, embedding))


FAMILY = Family(
    name="mvp",
    model_types=("mvp",),
    architectures={
        "MvpForConditionalGeneration": ("generate",),
        "MvpModel": ("generate",),
        "MvpForSequenceClassification": ("classify",),
        "MvpForQuestionAnswering": ("question_answer",),
    },
    config=_config,
    rules=post_norm_rules,
    zero_if_absent=frozenset({"head.bias"}),
)
