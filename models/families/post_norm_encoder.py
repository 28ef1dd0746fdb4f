"""What BERT and the families after it share: an encoder whose layers norm each sum, and how checkpoints name it.

Devlin et al. 2019, arXiv:1810.04805; the layer is that of Vaswani et al. 2017, arXiv:1706.03762. Not a family itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from models.config import (
    Activation,
    AttentionConfig,
    ClassificationHead,
    ConfigError,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    LayerConfig,
    LearnedPositions,
    MaskedLanguageModelHead,
    NormConfig,
    NormSlots,
    PoolingHead,
    SpanHead,
    StackConfig,
    TokenClassificationHead,
)
from models.families.family import Task
from models.families.fields import Fields, head_width
from weights.rules import Drop, Rename, Rule


def encoder_stack(
    *,
    vocab_size: int,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    intermediate_size: int,
    activation: Activation,
    norm: NormConfig,
    num_positions: int,
    num_token_types: int,
    embedding_width: int | None = None,
) -> StackConfig:
    """Learned positions and token types, a norm over the embeddings, and layers that norm after each sum.

    embedding_width: of the tables, where a linear layer brings them to the hidden size.
    """
    head_dim = head_width(hidden_size, num_heads)
    layer = LayerConfig(
        attention=AttentionConfig(
            num_heads=num_heads, num_kv_heads=num_heads, head_dim=head_dim, scale=head_dim**-0.5, causal=False
        ),
        attention_norms=NormSlots(residual=norm),
        feed_forward=FeedForwardConfig(intermediate_size, activation),
        feed_forward_norms=NormSlots(residual=norm),
    )
    embedding = EmbeddingConfig(
        vocab_size,
        positions=LearnedPositions(num_positions),
        num_token_types=num_token_types,
        norm=norm,
        width=embedding_width,
    )
    return StackConfig(embedding, (layer,) * num_layers)


def refuse_other_attention(hf: Mapping[str, Any]) -> None:
    """Raises ConfigError for what these architectures may be configured to be besides an encoder."""
    fields = Fields(hf)
    fields.refuse_unless("position_embedding_type", "absolute")
    fields.refuse_unless("is_decoder", False)
    fields.refuse_unless("add_cross_attention", False)


def architectures(name: str) -> dict[str, tuple[Task, ...]]:
    """What transformers calls a family's models, and what each can do. name: how their names begin (`Bert`)."""
    return {
        f"{name}Model": ("embed",),
        f"{name}ForMaskedLM": ("embed", "fill_mask"),
        f"{name}ForSequenceClassification": ("classify",),
        f"{name}ForTokenClassification": ("token_classify",),
        f"{name}ForQuestionAnswering": ("question_answer",),
    }


def head(fields: Fields, architecture: str, masked: MaskedLanguageModelHead, dense: Activation) -> HeadConfig:
    """The head that the name of an architecture asks for.

    masked: the family's head for masked words. dense: the activation before its classes. Raises ConfigError for untied
    masked words, and for question answering without its two labels, for the beginning and the end.
    """
    match architecture.partition("For")[2]:
        case "":
            return PoolingHead()
        case "MaskedLM" | "PreTraining":
            if not fields.flag("tie_word_embeddings", True):
                raise ConfigError("'tie_word_embeddings': false is not supported for masked words")
            return masked
        case "TokenClassification":
            return TokenClassificationHead(fields.labels())
        case "QuestionAnswering":
            if fields.labels() != 2:
                raise ConfigError(f"'num_labels': {fields.labels()} is not supported for question answering, only 2")
            return SpanHead()
        case _:
            return ClassificationHead(fields.labels(), dense=dense)


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


def embedding_rules(embeddings: str) -> tuple[Rule, ...]:
    """Rules for the embeddings as BERT has them. embeddings: what the checkpoint calls them, a pattern."""
    return (
        Rename(rf"{embeddings}\.word_embeddings\.weight", "encoder.embedding.tokens.weight"),
        Rename(rf"{embeddings}\.position_embeddings\.weight", "encoder.embedding.positions.weight"),
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


def roberta_head_rules(head: HeadConfig) -> tuple[Rule, ...]:
    """The heads as RoBERTa named them."""
    match head:
        case ClassificationHead():
            return (linear(r"classifier\.dense", "head.dense"), linear(r"classifier\.out_proj", "head.output"))
        case MaskedLanguageModelHead():
            return (
                linear(r"lm_head\.dense", "head.dense"),
                *norm(r"lm_head\.layer_norm", "head.norm"),
                Rename(r"lm_head\.(?:decoder\.)?bias", "head.bias"),
                Rename(r"lm_head\.decoder\.weight", "encoder.embedding.tokens.weight"),
            )
        case TokenClassificationHead():
            return (linear("classifier", "head.output"),)
        case SpanHead():
            return (linear("qa_outputs", "head.output"),)
        case _:
            return (Drop(r"lm_head\..*"),)
