"""What BERT and the families after it read alike from `config.json`: an encoder whose layers norm each sum, and heads.

Devlin et al. 2019, arXiv:1810.04805; the layer is that of Vaswani et al. 2017, arXiv:1706.03762. Not a family itself.
"""

from __future__ import annotations

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
    ModelConfig,
    NormConfig,
    NormSlots,
    PoolingHead,
    SpanHead,
    StackConfig,
    TokenClassificationHead,
)
from models.families.shared.family import Task
from models.families.shared.fields import Fields, head_width

_BERT: Mapping[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}


def encoder_fields(hf: Mapping[str, Any], **defaults: Any) -> Fields:
    """The settings, once they ask for an encoder. defaults: of the family, where they are not BERT's.

    Raises ConfigError for what these architectures may be configured to be besides.
    """
    fields = Fields(hf, defaults={**_BERT, **defaults})
    fields.refuse_unless("position_embedding_type", "absolute")
    fields.refuse_unless("is_decoder", False)
    fields.refuse_unless("add_cross_attention", False)
    return fields


def bert_norm(fields: Fields) -> NormConfig:
    """The one norm of all places."""
    return NormConfig("layer", fields.number("layer_norm_eps"))


def bert_stack(
    fields: Fields, *, first_position: int = 0, token_types: bool = True, embedding_width: int | None = None
) -> StackConfig:
    """The encoder by BERT's words. first_position: rows of the position table that no token looks up.
    token_types: whether there are some. embedding_width: see `encoder_stack`."""
    return encoder_stack(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=fields.integer("num_attention_heads"),
        intermediate_size=fields.integer("intermediate_size"),
        activation=fields.activation("hidden_act"),
        norm=bert_norm(fields),
        num_positions=fields.integer("max_position_embeddings", least=first_position + 1) - first_position,
        num_token_types=fields.integer("type_vocab_size") if token_types else 0,
        embedding_width=embedding_width,
    )


def bert_model(
    fields: Fields,
    architecture: str,
    stack: StackConfig,
    *,
    masked: Activation | None = None,
    dense: Activation = "tanh",
) -> ModelConfig:
    """The encoder and the head that the architecture asks for, as `head` has it.

    masked: the activation of the head for masked words; None for that of the layers. dense: see `head`.
    """
    embedding = stack.embedding
    assert isinstance(embedding, EmbeddingConfig) and isinstance(embedding.positions, LearnedPositions)
    words = MaskedLanguageModelHead(masked or fields.activation("hidden_act"), bert_norm(fields))
    return ModelConfig(
        fields.integer("hidden_size"),
        embedding.vocab_size,
        head(fields, architecture, words, dense),
        encoder=stack,
        max_positions=embedding.positions.num_positions,
    )


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
