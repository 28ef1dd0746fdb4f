"""Marian (Junczys-Dowmunt et al. 2018, arXiv:1804.00344): translation, as the opus-mt checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import EmbeddingConfig, LanguageModelHead, ModelConfig, SinusoidalPositions, StackConfig
from models.families.family import Family
from models.families.fields import Fields
from models.families.post_norm_seq2seq import embedding_scale, layer_rules, refuse_later_variants, seq2seq_stack
from models.generation_defaults import GenerationDefaults
from weights.rules import Drop, Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    refuse_later_variants(fields)
    fields.refuse_unless("normalize_embedding", False)
    fields.refuse_unless("static_position_embeddings", True)
    source_vocab, positions = fields.integer("vocab_size", 58101), fields.integer("max_position_embeddings", 1024)
    shared = fields.flag("share_encoder_decoder_embeddings", True)
    vocab = source_vocab if shared else fields.integer("decoder_vocab_size", source_vocab)
    tied = fields.flag("tie_word_embeddings", True)
    if shared:
        fields.refuse_unless("tie_word_embeddings", True)

    def stack(side: str, vocab_size: int) -> StackConfig:
        scale = embedding_scale(fields)
        return seq2seq_stack(fields, side, EmbeddingConfig(vocab_size, scale, SinusoidalPositions(positions)))

    return ModelConfig(
        hidden_size=fields.integer("d_model", 1024),
        vocab_size=vocab,
        head=LanguageModelHead(tied=tied, bias=True),
        encoder=stack("encoder", source_vocab),
        decoder=stack("decoder", vocab),
        shared_embeddings=shared,
        max_positions=positions,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    shared = model.shared_embeddings
    source = "encoder.embedding.tokens.weight"
    target = source if shared else "decoder.embedding.tokens.weight"
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    return (
        Rename(r"model\.shared\.weight", source),
        Rename(r"model\.encoder\.embed_tokens\.weight", source),
        Rename(r"model\.decoder\.embed_tokens\.weight", target),
        Rename(r"lm_head\.weight", target if tied else "head.weight"),
        Drop(r"model\.(?:encoder|decoder)\.embed_positions\.weight"),
        *layer_rules(),
    )


FAMILY = Family(
    name="marian",
    model_types=("marian",),
    architectures={"MarianMTModel": ("generate", "translate")},
    config=config,
    rules=rules,
    # Marian's decoder starts from the padding token, which each checkpoint names itself, and has no bos token.
    generation=GenerationDefaults(end_token_ids=(0,)),
    zero_if_absent=frozenset({"head.bias"}),
)
