"""Model2Vec (Tulkens and van Dongen 2024) and StaticEmbedding: a table of token vectors without any layers.

The vector of a text is the mean of its tokens' vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig, PoolingHead, StackConfig, StaticEmbeddingConfig
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from weights.rules import Rename, Rule


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    vocab = fields.integer("vocab_size")
    return ModelConfig(
        fields.integer("hidden_size"),
        vocab,
        PoolingHead(),
        encoder=StackConfig(StaticEmbeddingConfig(vocab), ()),
        max_positions=fields.optional_integer("max_length"),
    )


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (Rename(r"embedding\.weight", "encoder.embedding.tokens.weight"),)


FAMILY = Family(
    name="model2vec",
    model_types=("model2vec",),
    architectures={"StaticModel": ("embed",)},
    config=_config,
    rules=_rules,
)
