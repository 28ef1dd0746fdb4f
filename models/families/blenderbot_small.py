"""Blenderbot of 90 million parameters (Roller et al. 2020, arXiv:2004.13637): BART's layers, and a decoder that norms
its token vectors before it adds their positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import EmbeddingConfig, LanguageModelHead, LearnedPositions, ModelConfig
from models.families.shared.bart_config import (
    NORM,
    bart_embedding,
    bart_fields,
    bart_model,
    bart_stack,
    refuse_variants,
)
from models.families.shared.bart_rules import PREFIX, head_rules, layer_rules, token_rules
from models.families.shared.family import Family
from weights.rules import Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = bart_fields(hf, d_model=512, layers=8, ffn_dim=2048, max_position_embeddings=512)
    refuse_variants(fields, pre_norm=False, embedding_norm=True, sinusoidal_positions=False)
    fields.refuse_unless("tie_word_embeddings", True)
    fields.refuse_unless("layernorm_variant", "xlm")
    fields.refuse_unless("do_blenderbot_90_layernorm", True)
    read = bart_embedding(fields, LearnedPositions(fields.integer("max_position_embeddings")), NORM)
    # The decoder norms what is not scaled.
    written = EmbeddingConfig(read.vocab_size, positions=read.positions, token_norm=NORM)
    head = LanguageModelHead(tied=True, bias=True)
    return bart_model(fields, head, bart_stack(fields, "encoder", read), bart_stack(fields, "decoder", written))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    norm = r"\.layernorm_embedding\.(weight|bias)"
    return (
        *token_rules(),
        Rename(rf"{PREFIX}(encoder|decoder)\.embed_positions\.weight", r"\1.embedding.positions.weight"),
        Rename(rf"{PREFIX}encoder{norm}", r"encoder.embedding.norm.\1"),
        Rename(rf"{PREFIX}decoder{norm}", r"decoder.embedding.token_norm.\1"),
        *layer_rules(),
        *head_rules(),
    )


FAMILY = Family(
    name="blenderbot-small",
    model_types=("blenderbot-small",),
    architectures={"BlenderbotSmallForConditionalGeneration": ("generate",), "BlenderbotSmallModel": ("generate",)},
    config=config,
    rules=rules,
    zero_if_absent=frozenset({"head.bias"}),
)
