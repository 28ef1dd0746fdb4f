"""PLBART (Ahmad et al. 2021, arXiv:2103.06333): BART for source code, with language tokens as in mBART."""

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
    sizes = {"vocab_size": 50005, "d_model": 768, "layers": 6, "attention_heads": 12, "ffn_dim": 3072}
    fields = bart_fields(hf, scale_embedding=True, **sizes)
    refuse_variants(fields, pre_norm=False, embedding_norm=True, sinusoidal_positions=False)
    fields.refuse_unless("tie_word_embeddings", True)
    embedding = bart_embedding(fields, LearnedPositions(fields.integer("max_position_embeddings")), NORM)
    # For classification, the decoder input starts with the last token of the text, its language.
    head = bart_head(fields, architecture, start_token_id=None, default_end_token_id=2)
    return bart_model(fields, head, *both_stacks(fields, embedding))


FAMILY = Family(
    name="plbart",
    model_types=("plbart",),
    architectures={
        "PLBartForConditionalGeneration": ("generate",),
        "PLBartModel": ("generate",),
        "PLBartForSequenceClassification": ("classify",),
    },
    config=_config,
    rules=post_norm_rules,
    zero_if_absent=frozenset({"head.bias"}),
)
