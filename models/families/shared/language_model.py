"""Decoders with a language model head: their configuration, and rules for the token embeddings and the head."""

from __future__ import annotations

from models.config import EmbeddingConfig, LanguageModelHead, ModelConfig, StackConfig
from models.families.shared.fields import Fields
from weights.rules import Rename, Rule


def language_model(
    fields: Fields,
    hidden_size: int,
    decoder: StackConfig,
    max_positions: int | None,
    *,
    default_tied: bool,
    logit_bias: bool = False,
) -> ModelConfig:
    """Configuration of a decoder with a language model head. The decoder's embedding determines the vocabulary size.

    max_positions: longest text in tokens, None for no limit.
    default_tied: whether logits use the token embeddings if `config.json` has no `tie_word_embeddings`.
    logit_bias: whether the logits have a bias.
    """
    assert isinstance(decoder.embedding, EmbeddingConfig)
    return ModelConfig(
        hidden_size=hidden_size,
        vocab_size=decoder.embedding.vocab_size,
        head=LanguageModelHead(tied=fields.flag("tie_word_embeddings", default_tied), bias=logit_bias),
        decoder=decoder,
        max_positions=max_positions,
    )


def token_rules(model: ModelConfig, tokens: str, head: str = "lm_head") -> tuple[Rule, ...]:
    """Rules for the token embeddings and the head, which are one tensor if they are tied.

    tokens, head: regular expressions for the names of both in the checkpoint, without `.weight`.
    """
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    ours = "decoder.embedding.tokens.weight"
    return (
        Rename(tokens + r"\.weight", ours),
        Rename(head + r"\.weight", ours if tied else "head.weight"),
        Rename(head + r"\.bias", "head.bias"),
    )
