"""Marian (Junczys-Dowmunt et al. 2018, arXiv:1804.00344): translation models such as opus-mt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import LanguageModelHead, ModelConfig, SinusoidalPositions
from models.families.shared.bart_config import bart_embedding, bart_fields, bart_model, bart_stack, refuse_variants
from models.families.shared.bart_rules import TOKENS, head_rules, layer_rules
from models.families.shared.family import Family
from weights.rules import Constant, Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = bart_fields(hf, vocab_size=58101)
    refuse_variants(fields, pre_norm=False, embedding_norm=False, sinusoidal_positions=True)
    source_vocab, positions = (
        fields.integer("vocab_size"),
        SinusoidalPositions(fields.integer("max_position_embeddings")),
    )
    shared, tied = fields.flag("share_encoder_decoder_embeddings", True), fields.flag("tie_word_embeddings", True)
    if shared:
        fields.refuse_unless("tie_word_embeddings", True)
    vocab = source_vocab if shared else fields.integer("decoder_vocab_size", source_vocab)
    return bart_model(
        fields,
        LanguageModelHead(tied=tied, bias=True),
        bart_stack(fields, "encoder", bart_embedding(fields, positions)),
        bart_stack(fields, "decoder", bart_embedding(fields, positions, vocab_size=vocab)),
        shared=shared,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    target = TOKENS if model.shared_embeddings else "decoder.embedding.tokens.weight"
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    return (
        Rename(r"model\.shared\.weight", TOKENS),
        Rename(r"model\.encoder\.embed_tokens\.weight", TOKENS),
        Rename(r"model\.decoder\.embed_tokens\.weight", target),
        Rename(r"lm_head\.weight", target if tied else "head.weight"),
        Constant(r"model\.(encoder|decoder)\.embed_positions\.weight", r"\1.embedding.positions"),
        *layer_rules(),
        *head_rules(),
    )


FAMILY = Family(
    name="marian",
    model_types=("marian",),
    architectures={"MarianMTModel": ("generate", "translate")},
    config=config,
    rules=rules,
    zero_if_absent=frozenset({"head.bias"}),
)
