"""BigBird (Zaheer et al. 2020, arXiv:2007.14062): BERT with block sparse attention for texts of up to 4,096 tokens.

Its tokenizer gives no token types; the head for answers takes them from the first separator, and has a feed-forward
sublayer of its own. That head's logits of a question's own tokens, which the reference lowers out of reach, are as they
come: nothing answers from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import (
    ClassificationHead,
    FeedForwardConfig,
    FeedForwardSpanHead,
    HeadConfig,
    MaskedLanguageModelHead,
    ModelConfig,
    NormConfig,
    QuestionTypesEmbeddingConfig,
    SpanHead,
    StackConfig,
    TokenClassificationHead,
)
from models.families.block_sparse import with_blocks, without_biases
from models.families.family import Family
from models.families.fields import Fields
from models.families.post_norm_encoder import (
    architectures,
    bert_layer_names,
    encoder_stack,
    head,
    layer_rules,
    linear,
    norm,
    refuse_other_attention,
)
from weights.rules import Drop, Rename, Rule

_PREFIX = r"(?:bert\.)?"
_TOKENS = "encoder.embedding.tokens.weight"


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    refuse_other_attention(hf)
    fields = Fields(hf)
    layer_norm = NormConfig("layer", fields.number("layer_norm_eps", 1e-12))
    hidden_size, vocab_size = fields.integer("hidden_size", 768), fields.integer("vocab_size", 50358)
    num_positions = fields.integer("max_position_embeddings", 4096)
    activation = fields.activation("hidden_act", "gelu_new")
    stack = encoder_stack(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=fields.integer("num_hidden_layers", 12),
        num_heads=fields.integer("num_attention_heads", 12),
        intermediate_size=fields.integer("intermediate_size", 3072),
        activation=activation,
        norm=layer_norm,
        num_positions=num_positions,
        num_token_types=fields.integer("type_vocab_size", 2),
    )
    chosen: HeadConfig = head(fields, architecture, MaskedLanguageModelHead(activation, layer_norm), dense=activation)
    if isinstance(chosen, SpanHead):
        feed_forward = stack.layers[0].feed_forward
        assert isinstance(feed_forward, FeedForwardConfig)
        chosen = FeedForwardSpanHead(feed_forward=feed_forward, sum_norm=layer_norm)
    stack = _embedded(stack, fields, hidden_size, answers=isinstance(chosen, SpanHead))
    if not fields.flag("use_bias", True):
        layers = (replace(one, attention=without_biases(one.attention, output=True)) for one in stack.layers)
        stack = replace(stack, layers=tuple(layers))
    return ModelConfig(hidden_size, vocab_size, chosen, encoder=with_blocks(stack, fields), max_positions=num_positions)


def _embedded(stack: StackConfig, fields: Fields, hidden_size: int, answers: bool) -> StackConfig:
    fields.integer("type_vocab_size", 2, least=2 if answers else 1)
    embedding = QuestionTypesEmbeddingConfig(
        **{**vars(stack.embedding), "scale": hidden_size**0.5 if fields.flag("rescale_embeddings", False) else 1.0},
        separator_id=fields.integer("sep_token_id", 66, least=0) if answers else None,
    )
    return replace(stack, embedding=embedding)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    embeddings = rf"{_PREFIX}embeddings"
    body = (
        Rename(rf"{embeddings}\.word_embeddings\.weight", _TOKENS),
        Rename(rf"{embeddings}\.position_embeddings\.weight", "encoder.embedding.positions.weight"),
        Rename(rf"{embeddings}\.token_type_embeddings\.weight", "encoder.embedding.token_types.weight"),
        *norm(rf"{embeddings}\.LayerNorm", "encoder.embedding.norm"),
        Drop(rf"{embeddings}\.(position_ids|token_type_ids)|{_PREFIX}pooler\..*"),
        *layer_rules(bert_layer_names(_PREFIX)),
    )
    match model.head:
        case ClassificationHead():
            return (
                *body,
                linear(r"classifier\.dense", "head.dense"),
                linear(r"classifier\.out_proj", "head.output"),
            )
        case MaskedLanguageModelHead():
            return (
                *body,
                linear(r"cls\.predictions\.transform\.dense", "head.dense"),
                *norm(r"cls\.predictions\.transform\.LayerNorm", "head.norm"),
                Rename(r"cls\.predictions\.(?:decoder\.)?bias", "head.bias"),
                Rename(r"cls\.predictions\.decoder\.weight", _TOKENS),
                Drop(r"cls\.seq_relationship\..*"),
            )
        case TokenClassificationHead():
            return (*body, linear("classifier", "head.output"), Drop(r"cls\..*"))
        case FeedForwardSpanHead():
            return (
                *body,
                linear(r"qa_classifier\.intermediate\.dense", "head.feed_forward.up"),
                linear(r"qa_classifier\.output\.dense", "head.feed_forward.down"),
                *norm(r"qa_classifier\.output\.LayerNorm", "head.norms.residual"),
                linear(r"qa_classifier\.qa_outputs", "head.output"),
                Drop(r"cls\..*"),
            )
        case _:
            return (*body, Drop(r"cls\..*"))


FAMILY = Family(
    name="big_bird",
    model_types=("big_bird",),
    architectures=architectures("BigBird") | {"BigBirdForPreTraining": ("embed", "fill_mask")},
    config=config,
    rules=rules,
)
