"""Blenderbot (Roller et al. 2020, arXiv:2004.13637): conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import LanguageModelHead, LearnedPositions, ModelConfig
from models.families.shared.bart_config import bart_embedding, bart_fields, bart_model, both_stacks, refuse_variants
from models.families.shared.bart_rules import PREFIX, pre_norm_rules
from models.families.shared.family import Family
from weights.rules import Rename, Rule

_DEFAULTS = {
    "vocab_size": 8008,
    "d_model": 2560,
    "encoder_layers": 2,
    "decoder_layers": 24,
    "attention_heads": 32,
    "ffn_dim": 10240,
    "max_position_embeddings": 128,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = bart_fields(hf, **_DEFAULTS)
    refuse_variants(fields, pre_norm=True, embedding_norm=False, sinusoidal_positions=False)
    fields.refuse_unless("tie_word_embeddings", True)
    fields.refuse_unless("layernorm_variant", "prelayernorm")
    embedding = bart_embedding(fields, LearnedPositions(fields.integer("max_position_embeddings")))
    head = LanguageModelHead(tied=True, bias=True)
    return bart_model(fields, head, *both_stacks(fields, embedding, pre_norm=True))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    positions = rf"{PREFIX}(encoder|decoder)\.embed_positions\.weight"
    return (Rename(positions, r"\1.embedding.positions.weight"), *pre_norm_rules())


FAMILY = Family(
    name="blenderbot",
    model_types=("blenderbot",),
    architectures={"BlenderbotForConditionalGeneration": ("generate",), "BlenderbotModel": ("generate",)},
    config=config,
    rules=rules,
    zero_if_absent=frozenset({"head.bias"}),
)
