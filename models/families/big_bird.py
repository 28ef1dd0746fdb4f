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
    MaskedLanguageModelHead,
    ModelConfig,
    QuestionTypesEmbeddingConfig,
    SpanHead,
    StackConfig,
)
from models.families.shared.bert_fields import architectures, bert_model, bert_norm, bert_stack, encoder_fields
from models.families.shared.bert_rules import (
    bert_layer_names,
    embedding_rules,
    layer_rules,
    linear,
    masked_rules,
    norm,
    output_rules,
    roberta_class_rules,
)
from models.families.shared.block_sparse import with_blocks, without_biases
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from weights.rules import Drop, Rule

_PREFIX = r"(?:bert\.)?"


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = encoder_fields(hf, vocab_size=50358, max_position_embeddings=4096, hidden_act="gelu_new")
    stack = bert_stack(fields)
    model = bert_model(fields, architecture, stack, dense=fields.activation("hidden_act"))
    answers = isinstance(model.head, SpanHead)
    if answers:
        feed_forward = stack.layers[0].feed_forward
        assert isinstance(feed_forward, FeedForwardConfig)
        head = FeedForwardSpanHead(feed_forward=feed_forward, sum_norm=bert_norm(fields))
        model = replace(model, head=head)
    stack = _embedded(stack, fields, model.hidden_size, answers)
    if not fields.flag("use_bias", True):
        layers = (replace(one, attention=without_biases(one.attention, output=True)) for one in stack.layers)
        stack = replace(stack, layers=tuple(layers))
    return replace(model, encoder=with_blocks(stack, fields))


def _embedded(stack: StackConfig, fields: Fields, hidden_size: int, answers: bool) -> StackConfig:
    fields.integer("type_vocab_size", least=2 if answers else 1)
    embedding = QuestionTypesEmbeddingConfig(
        **{**vars(stack.embedding), "scale": hidden_size**0.5 if fields.flag("rescale_embeddings", False) else 1.0},
        separator_id=fields.integer("sep_token_id", 66, least=0) if answers else None,
    )
    return replace(stack, embedding=embedding)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    body = (
        *embedding_rules(rf"{_PREFIX}embeddings"),
        Drop(rf"{_PREFIX}pooler\..*"),
        *layer_rules(bert_layer_names(_PREFIX)),
    )
    words = r"cls\.predictions"
    match model.head:
        case ClassificationHead():
            return (*body, *roberta_class_rules())
        case MaskedLanguageModelHead():
            return (
                *body,
                *masked_rules(rf"{words}\.transform\.dense", rf"{words}\.transform\.LayerNorm", words),
                Drop(r"cls\.seq_relationship\..*"),
            )
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
            return (*body, *output_rules(model.head), Drop(r"cls\..*"))


FAMILY = Family(
    name="big_bird",
    model_types=("big_bird",),
    architectures=architectures("BigBird") | {"BigBirdForPreTraining": ("embed", "fill_mask")},
    config=config,
    rules=rules,
)
