"""BigBird (Zaheer et al. 2020, arXiv:2007.14062): BERT with block sparse attention for texts of up to 4,096 tokens.

Its tokenizer returns no token types, so the question answering head derives them from the first separator token. This
head also has a feed-forward sublayer. The reference implementation sets its logits at question tokens close to minus
infinity. Here they are unchanged, because the server takes no answer from the question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    ClassificationHead,
    FeedForwardSpanHead,
    MaskedLanguageModelHead,
    ModelConfig,
    QuestionTypesEmbeddingConfig,
    SpanHead,
)
from models.families.shared.bert_config import (
    architectures,
    bert_attention,
    bert_embedding,
    bert_feed_forward,
    bert_head,
    bert_layers,
    bert_model,
    bert_norm,
    encoder_fields,
)
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
from models.families.shared.block_sparse import block_sparse
from models.families.shared.family import Family
from weights.rules import Drop, Rule

_PREFIX = r"(?:bert\.)?"


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = encoder_fields(hf, vocab_size=50358, max_position_embeddings=4096, hidden_act="gelu_new")
    attention = block_sparse(fields, bert_attention(fields, qkv_bias=fields.flag("use_bias", True)))
    head = bert_head(fields, architecture, dense=fields.activation("hidden_act"))
    answers = isinstance(head, SpanHead)
    if answers:
        head = FeedForwardSpanHead(feed_forward=bert_feed_forward(fields), sum_norm=bert_norm(fields))
    fields.integer("type_vocab_size", least=2 if answers else 1)
    scale = fields.integer("hidden_size") ** 0.5 if fields.flag("rescale_embeddings", False) else 1.0
    embedding = QuestionTypesEmbeddingConfig(
        **vars(bert_embedding(fields, scale=scale)),
        separator_id=fields.integer("sep_token_id", 66, least=0) if answers else None,
    )
    return bert_model(fields, head, embedding, bert_layers(fields, attention))


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
