"""Configurations of BERT and related encoders: layers, embeddings with learned positions, and heads.

Sources: Devlin et al. 2019, arXiv:1810.04805; for the layer, Vaswani et al. 2017, arXiv:1706.03762.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from models.config import (
    Activation,
    AttentionConfig,
    BucketBiasConfig,
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
from models.families.shared.family import CheckpointTask
from models.families.shared.fields import Fields, head_width

_DEFAULTS: Mapping[str, Any] = {
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
    """Typed access to the settings of an encoder.

    defaults: the family's defaults, where they differ from those of BERT.
    Raises ConfigError if the settings describe a decoder or relative positions.
    """
    fields = Fields(hf, defaults={**_DEFAULTS, **defaults})
    fields.refuse_unless("position_embedding_type", "absolute")
    fields.refuse_unless("is_decoder", False)
    fields.refuse_unless("add_cross_attention", False)
    return fields


def bert_norm(fields: Fields) -> NormConfig:
    """Configuration of every norm of a model: a layer norm with the setting `layer_norm_eps`."""
    return NormConfig("layer", fields.number("layer_norm_eps"))


def bert_embedding(
    fields: Fields,
    *,
    first_position: int = 0,
    token_types: bool = True,
    width: int | None = None,
    scale: float = 1.0,
    norm: bool = True,
) -> EmbeddingConfig:
    """Configuration of the sum of token, position and token type embeddings.

    first_position: number of leading rows of the position table that are never used.
    token_types: whether there are token types.
    width: width of the tables if a linear layer projects their sum to the hidden size, None for the hidden size.
    scale: factor of the token embeddings.
    norm: whether a norm follows the sum.
    """
    return EmbeddingConfig(
        fields.integer("vocab_size"),
        scale,
        positions=LearnedPositions(
            fields.integer("max_position_embeddings", least=first_position + 1) - first_position
        ),
        num_token_types=fields.integer("type_vocab_size") if token_types else 0,
        norm=bert_norm(fields) if norm else None,
        width=width,
    )


def bert_attention(fields: Fields, *, qkv_bias: bool = True) -> AttentionConfig:
    """Full self-attention. qkv_bias: whether the projections of queries, keys and values have biases."""
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    return encoder_attention(hidden_size, num_heads, qkv_bias=qkv_bias)


def bert_layers(fields: Fields, attention: AttentionConfig | None = None) -> tuple[LayerConfig, ...]:
    """Post-norm layers of an encoder, all equal. attention: attention of every layer, None for full attention."""
    layer = bert_layer(fields, attention or bert_attention(fields))
    return (layer,) * fields.integer("num_hidden_layers")


def pre_norm_layers(fields: Fields) -> tuple[LayerConfig, ...]:
    """Pre-norm layers of an encoder, all equal: a norm precedes each sublayer, and attention is full."""
    norms = NormSlots(input=bert_norm(fields))
    layer = LayerConfig(bert_attention(fields), norms, bert_feed_forward(fields), norms)
    return (layer,) * fields.integer("num_hidden_layers")


def bert_layer(fields: Fields, attention: AttentionConfig) -> LayerConfig:
    return post_norm_layer(attention, bert_feed_forward(fields), bert_norm(fields))


def bert_feed_forward(fields: Fields) -> FeedForwardConfig:
    return FeedForwardConfig(fields.integer("intermediate_size"), fields.activation("hidden_act"))


def encoder_attention(hidden_size: int, num_heads: int, *, qkv_bias: bool = True) -> AttentionConfig:
    head_dim = head_width(hidden_size, num_heads)
    return AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        causal=False,
        query_bias=qkv_bias,
        key_bias=qkv_bias,
        value_bias=qkv_bias,
    )


def post_norm_layer(attention: AttentionConfig, feed_forward: FeedForwardConfig, norm: NormConfig) -> LayerConfig:
    """A layer with a norm after each residual sum."""
    return LayerConfig(attention, NormSlots(residual=norm), feed_forward, NormSlots(residual=norm))


def bert_model(
    fields: Fields,
    head: HeadConfig,
    embedding: EmbeddingConfig,
    layers: Sequence[LayerConfig],
    *,
    score_bias: BucketBiasConfig | None = None,
    sharing: Sequence[int] = (),
    final_norm: NormConfig | None = None,
) -> ModelConfig:
    """Configuration of an encoder with a head. Its longest text has as many tokens as there are learned positions.

    score_bias: relative position bias of the attention scores, None for no bias.
    sharing: for each layer, the index of the layer whose weights it uses; empty if every layer has separate weights.
    final_norm: norm after the last layer, None for no norm.
    """
    assert isinstance(embedding.positions, LearnedPositions)
    return ModelConfig(
        fields.integer("hidden_size"),
        embedding.vocab_size,
        head,
        encoder=StackConfig(
            embedding, tuple(layers), final_norm=final_norm, score_bias=score_bias, sharing=tuple(sharing)
        ),
        max_positions=embedding.positions.num_positions,
    )


def architectures(name: str) -> dict[str, tuple[CheckpointTask, ...]]:
    """Names of a family's model classes in transformers, each with the tasks that the class can do.

    name: start of the class names, for example `Bert` for `BertForMaskedLM`.
    """
    return {
        f"{name}Model": ("embed",),
        f"{name}ForMaskedLM": ("embed", "fill_mask"),
        f"{name}ForSequenceClassification": ("classify",),
        f"{name}ForTokenClassification": ("token_classify",),
        f"{name}ForQuestionAnswering": ("question_answer",),
    }


def bert_head(
    fields: Fields, architecture: str, *, masked: Activation | None = None, dense: Activation = "tanh"
) -> HeadConfig:
    """Configuration of an architecture's head, for families with the same masked language model head as BERT.

    architecture: class name in transformers.
    masked: activation of the masked language model head, None for the setting `hidden_act`.
    dense: activation of the dense layer of the classification head.
    Raises ConfigError for a masked language model with untied logits, and for question answering with another number of
    labels than two.
    """
    masked_head = MaskedLanguageModelHead(masked or fields.activation("hidden_act"), bert_norm(fields))
    return encoder_head(fields, architecture, masked_head, dense)


def encoder_head(
    fields: Fields,
    architecture: str,
    masked: MaskedLanguageModelHead,
    dense: Activation,
    *,
    token_dense: Mapping[str, Any] = MappingProxyType({}),
) -> HeadConfig:
    """Configuration of the head of an architecture.

    architecture: class name in transformers.
    masked: the head if the name ends with `ForMaskedLM` or `ForPreTraining`.
    dense: activation of the dense layer of the classification head.
    token_dense: settings of the dense layer in heads that classify each token; empty for no dense layer.
    Raises ConfigError if `tie_word_embeddings` does not agree with `masked`, whose logits are tied or have a separate
    table, and for question answering with another number of labels than two (start and end).
    """
    match "" if architecture.endswith("Model") else architecture.rpartition("For")[2]:
        case "":
            return PoolingHead()
        case "MaskedLM" | "PreTraining":
            own_table = masked.table_width is not None
            if fields.flag("tie_word_embeddings", not own_table) == own_table:
                raise ConfigError(
                    f"'tie_word_embeddings': {str(own_table).lower()} is not supported for these masked language models"
                )
            return masked
        case "TokenClassification":
            return TokenClassificationHead(fields.labels(), **token_dense)
        case "QuestionAnswering":
            if fields.labels() != 2:
                raise ConfigError(f"'num_labels': {fields.labels()} is not supported for question answering, only 2")
            return SpanHead(**token_dense)
        case _:
            return ClassificationHead(fields.labels(), dense=dense)
