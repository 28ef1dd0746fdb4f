"""BioGPT (Luo et al. 2022, arXiv:2210.10341): pre-norm decoder with learned positions that start at 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LanguageModelHead,
    LayerConfig,
    LearnedPositions,
    ModelConfig,
    NormConfig,
    NormSlots,
    StackConfig,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fairseq_layers import fairseq_layer_rules
from models.families.shared.fields import Fields, head_width
from weights.rules import Rename, Rule, Slice

_NORM = NormConfig("layer", 1e-5)
"""The published code ignores `layer_norm_eps`."""


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    hidden, heads = fields.integer("hidden_size", 1024), fields.integer("num_attention_heads", 16)
    head_dim, norms = head_width(hidden, heads), NormSlots(input=_NORM)
    layer = LayerConfig(
        AttentionConfig(heads, heads, head_dim, head_dim**-0.5, causal=True),
        norms,
        FeedForwardConfig(fields.integer("intermediate_size", 4096), fields.activation("hidden_act", "gelu")),
        norms,
    )
    vocab, positions = fields.integer("vocab_size", 42384), fields.integer("max_position_embeddings", 1024)
    return ModelConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        head=LanguageModelHead(tied=fields.flag("tie_word_embeddings", True)),
        decoder=StackConfig(
            EmbeddingConfig(
                vocab,
                scale=hidden**0.5 if fields.flag("scale_embedding", True) else 1.0,
                positions=LearnedPositions(positions),
            ),
            (layer,) * fields.integer("num_hidden_layers", 24),
            final_norm=_NORM,
        ),
        max_positions=positions,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert isinstance(model.head, LanguageModelHead)
    decoder, tokens = r"(?:biogpt\.)?", "decoder.embedding.tokens.weight"
    return (
        Rename(decoder + r"embed_tokens\.weight", tokens),
        Slice(decoder + r"embed_positions\.weight", "decoder.embedding.positions.weight", start=2),
        *fairseq_layer_rules(decoder),
        Rename(decoder + r"layer_norm\.(weight|bias)", r"decoder.final_norm.\1"),
        Rename(r"output_projection\.weight", tokens if model.head.tied else "head.weight"),
    )


FAMILY = decoder_family(
    "biogpt",
    "BioGpt",
    config,
    rules,
    answers=False,
    pad_token_id=1,
)
