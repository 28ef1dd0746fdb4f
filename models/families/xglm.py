"""XGLM (Lin et al. 2022, arXiv:2112.10668): multilingual pre-norm decoder with sinusoidal positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FairseqSinusoidalPositions,
    FeedForwardConfig,
    LanguageModelHead,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    StackConfig,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fairseq_layers import fairseq_layer_rules
from models.families.shared.fields import Fields, head_width
from weights.rules import Drop, Rename, Rule

_FIRST_POSITION = 2
_NORM = NormConfig("layer", 1e-5)


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    fields.refuse_unless("add_cross_attention", False)
    # The published code sets the position vector with the index `pad_token_id` to zero.
    fields.refuse_unless("pad_token_id", *range(_FIRST_POSITION))
    hidden, heads = fields.integer("d_model", 1024), fields.integer("attention_heads", 16)
    head_dim, norms = head_width(hidden, heads), NormSlots(input=_NORM)
    layer = LayerConfig(
        AttentionConfig(heads, heads, head_dim, head_dim**-0.5, causal=True),
        norms,
        FeedForwardConfig(fields.integer("ffn_dim", 4096), fields.activation("activation_function", "gelu")),
        norms,
    )
    vocab, positions = fields.integer("vocab_size", 256008), fields.integer("max_position_embeddings", 2048)
    return ModelConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        head=LanguageModelHead(tied=fields.flag("tie_word_embeddings", True)),
        decoder=StackConfig(
            EmbeddingConfig(
                vocab,
                scale=hidden**0.5 if fields.flag("scale_embedding", True) else 1.0,
                positions=FairseqSinusoidalPositions(positions, _FIRST_POSITION),
            ),
            (layer,) * fields.integer("num_layers", 24),
            final_norm=_NORM,
        ),
        max_positions=positions,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert isinstance(model.head, LanguageModelHead)
    decoder, tokens = r"(?:model\.)?", "decoder.embedding.tokens.weight"
    return (
        Rename(decoder + r"embed_tokens\.weight", tokens),
        *fairseq_layer_rules(decoder),
        Rename(decoder + r"layer_norm\.(weight|bias)", r"decoder.final_norm.\1"),
        Rename(r"lm_head\.weight", tokens if model.head.tied else "head.weight"),
        # Files of transformers 4 contain the computed positions.
        Drop(decoder + r"embed_positions\.weights"),
    )


FAMILY = decoder_family(
    "xglm",
    "XGLM",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
)
