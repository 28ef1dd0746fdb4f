"""mBART and mBART-50 (Liu et al. 2020, arXiv:2001.08210; Tang et al. 2020, arXiv:2008.00401): translation.

A language token follows the source text in mBART and precedes it in mBART-50 (`server.text.languages.languages`).
"""

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
from models.families.shared.bart_rules import PREFIX, pre_norm_rules
from models.families.shared.family import Family
from weights.rules import Rename, Rule, Slice


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = bart_fields(hf)
    refuse_variants(fields, pre_norm=True, embedding_norm=True, sinusoidal_positions=False)
    fields.refuse_unless("tie_word_embeddings", True)
    embedding = bart_embedding(fields, LearnedPositions(fields.integer("max_position_embeddings")), NORM)
    # For classification, the decoder input starts with the last token of the text, its language.
    head = bart_head(fields, architecture, start_token_id=None, default_end_token_id=2)
    return bart_model(fields, head, *both_stacks(fields, embedding, pre_norm=True))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    stack = rf"{PREFIX}(encoder|decoder)\."
    return (
        Slice(stack + r"embed_positions\.weight", r"\1.embedding.positions.weight", start=2),
        Rename(stack + r"layernorm_embedding\.(weight|bias)", r"\1.embedding.norm.\2"),
        *pre_norm_rules(),
    )


FAMILY = Family(
    name="mbart",
    model_types=("mbart",),
    architectures={
        "MBartForConditionalGeneration": ("generate", "translate"),
        "MBartModel": ("generate", "translate"),
        "MBartForSequenceClassification": ("classify",),
        "MBartForQuestionAnswering": ("question_answer",),
    },
    config=config,
    rules=rules,
    zero_if_absent=frozenset({"head.bias"}),
    # mBART-50 starts with the end token instead. Its checkpoints set `decoder_start_token_id` to that token.
    decoder_start="language",
)
