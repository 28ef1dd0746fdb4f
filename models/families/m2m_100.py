"""M2M100 and NLLB-200 (Fan et al. 2020, arXiv:2010.11125; NLLB Team 2022, arXiv:2207.04672): many-to-many translation.

The first generated token is always the token of the target language (`server.text.languages.languages`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import FairseqSinusoidalPositions, LanguageModelHead, ModelConfig
from models.families.shared.bart_config import bart_embedding, bart_fields, bart_model, both_stacks, refuse_variants
from models.families.shared.bart_rules import PREFIX, pre_norm_rules
from models.families.shared.family import Family
from weights.rules import Constant, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = bart_fields(hf, vocab_size=128112, activation_function="relu", scale_embedding=True)
    refuse_variants(fields, pre_norm=True, embedding_norm=False)
    fields.refuse_unless("tie_word_embeddings", True)
    # fairseq numbers positions from the id after the padding token.
    first = fields.integer("pad_token_id", 1, least=0) + 1
    embedding = bart_embedding(fields, FairseqSinusoidalPositions(fields.integer("max_position_embeddings"), first))
    return bart_model(fields, LanguageModelHead(tied=True), *both_stacks(fields, embedding, pre_norm=True))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (
        Constant(rf"{PREFIX}(encoder|decoder)\.embed_positions\.weights?", r"\1.embedding.positions"),
        *pre_norm_rules(),
    )


FAMILY = Family(
    name="m2m_100",
    model_types=("m2m_100",),
    architectures={
        "M2M100ForConditionalGeneration": ("generate", "translate"),
        "M2M100Model": ("generate", "translate"),
    },
    config=config,
    rules=rules,
)
