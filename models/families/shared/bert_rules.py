"""How checkpoints name the tensors of BERT, and of the families after it. Not a family itself."""

from __future__ import annotations

import re
from collections.abc import Mapping

from models.config import (
    ClassificationHead,
    HeadConfig,
    MaskedLanguageModelHead,
    PoolingHead,
    SpanHead,
    TokenClassificationHead,
)
from weights.rules import Drop, Rename, Rule, Slice

TOKENS = "encoder.embedding.tokens.weight"


def linear(pattern: str, name: str) -> Rule:
    """Weight and bias of a linear layer."""
    groups = re.compile(pattern).groups
    return Rename(rf"{pattern}\.(weight|bias)", rf"{name}.\{groups + 1}")


def norm(pattern: str, name: str) -> tuple[Rule, Rule]:
    """A norm's two vectors, which the first checkpoints call gamma and beta."""
    return (
        Rename(rf"{pattern}\.(?:weight|gamma)", f"{name}.weight"),
        Rename(rf"{pattern}\.(?:bias|beta)", f"{name}.bias"),
    )


def embedding_rules(embeddings: str, first_position: int = 0) -> tuple[Rule, ...]:
    """Rules for the embeddings as BERT has them.

    embeddings: what the checkpoint calls them, a pattern. first_position: rows of the position table before it are
        never looked up and left out.
    """
    positions = rf"{embeddings}\.position_embeddings\.weight", "encoder.embedding.positions.weight"
    return (
        Rename(rf"{embeddings}\.word_embeddings\.weight", TOKENS),
        Slice(*positions, start=first_position) if first_position else Rename(*positions),
        Rename(rf"{embeddings}\.token_type_embeddings\.weight", "encoder.embedding.token_types.weight"),
        *norm(rf"{embeddings}\.LayerNorm", "encoder.embedding.norm"),
        Drop(rf"{embeddings}\.(position_ids|token_type_ids)"),
    )


def layer_rules(names: Mapping[str, str]) -> tuple[Rule, ...]:
    """Rules for a layer's tensors.

    names: what the checkpoint calls `query`, `key`, `value`, `output`, `attention_norm`, `up`, `down` and
        `feed_forward_norm`: patterns whose one group is the layer's number.
    """
    layer = r"encoder.layers.\1"
    return (
        *(linear(names[part], f"{layer}.attention.{part}") for part in ("query", "key", "value", "output")),
        *(linear(names[part], f"{layer}.feed_forward.{part}") for part in ("up", "down")),
        *norm(names["attention_norm"], f"{layer}.attention_norms.residual"),
        *norm(names["feed_forward_norm"], f"{layer}.feed_forward_norms.residual"),
    )


def bert_layer_names(prefix: str) -> dict[str, str]:
    """The names that BERT gave and RoBERTa kept."""
    layer = rf"{prefix}encoder\.layer\.(\d+)"
    return {
        **{part: rf"{layer}\.attention\.self\.{part}" for part in ("query", "key", "value")},
        "output": rf"{layer}\.attention\.output\.dense",
        "attention_norm": rf"{layer}\.attention\.output\.LayerNorm",
        "up": rf"{layer}\.intermediate\.dense",
        "down": rf"{layer}\.output\.dense",
        "feed_forward_norm": rf"{layer}\.output\.LayerNorm",
    }


def masked_rules(dense: str, its_norm: str, logits: str) -> tuple[Rule, ...]:
    """The head for masked words by the patterns of its two layers and of its tied logits."""
    return (
        linear(dense, "head.dense"),
        *norm(its_norm, "head.norm"),
        Rename(rf"{logits}\.(?:decoder\.)?bias", "head.bias"),
        Rename(rf"{logits}\.(?:decoder\.)?weight", TOKENS),
    )


def output_rules(head: HeadConfig) -> tuple[Rule, ...]:
    """The one layer over each token, for its classes or for places of answers; nothing for other heads."""
    match head:
        case TokenClassificationHead():
            return (linear("classifier", "head.output"),)
        case SpanHead():
            return (linear("qa_outputs", "head.output"),)
        case _:
            return ()


def roberta_class_rules() -> tuple[Rule, ...]:
    """The head for classes of a text as RoBERTa named it."""
    return (linear(r"classifier\.dense", "head.dense"), linear(r"classifier\.out_proj", "head.output"))


def roberta_head_rules(head: HeadConfig) -> tuple[Rule, ...]:
    """All its heads."""
    match head:
        case ClassificationHead():
            return roberta_class_rules()
        case MaskedLanguageModelHead():
            return masked_rules(r"lm_head\.dense", r"lm_head\.layer_norm", "lm_head")
        case PoolingHead():
            return (Drop(r"lm_head\..*"),)
        case _:
            return output_rules(head)
