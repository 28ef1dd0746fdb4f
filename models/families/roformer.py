"""RoFormer (Su et al. 2021, arXiv:2104.09864): BERT with rotary positions on pairs of neighbouring dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import ClassificationHead, EmbeddingConfig, ModelConfig, RopeConfig, StackConfig
from models.families.shared.bert_config import (
    architectures,
    bert_attention,
    bert_head,
    bert_layers,
    bert_norm,
    encoder_fields,
)
from models.families.shared.bert_rules import (
    bert_head_rules,
    bert_layer_names,
    embedding_rules,
    layer_rules,
    linear,
    roberta_class_rules,
)
from models.families.shared.family import Family
from weights.rules import Constant, Rule

_PREFIX = r"(?:roformer\.)?"


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = encoder_fields(hf, vocab_size=50000, max_position_embeddings=1536)
    fields.refuse_unless("rotary_value", False)
    hidden, attention = fields.integer("hidden_size"), bert_attention(fields)
    rope = RopeConfig(10000.0, attention.head_dim, pairing="interleaved")
    width = fields.optional_integer("embedding_size")
    embedding = EmbeddingConfig(
        fields.integer("vocab_size"),
        num_token_types=fields.integer("type_vocab_size"),
        norm=bert_norm(fields),
        width=None if width == hidden else width,
    )
    return ModelConfig(
        hidden,
        embedding.vocab_size,
        bert_head(fields, architecture, dense=fields.activation("hidden_act")),
        encoder=StackConfig(embedding, bert_layers(fields, replace(attention, rope=rope))),
        max_positions=fields.integer("max_position_embeddings"),
    )


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    body = (
        *embedding_rules(rf"{_PREFIX}embeddings"),
        linear(rf"{_PREFIX}embeddings_project", "encoder.embedding.projection"),
        Constant(rf"{_PREFIX}encoder\.embed_positions\.weight", "encoder.rotation"),
        *layer_rules(bert_layer_names(_PREFIX)),
    )
    if isinstance(model.head, ClassificationHead):
        return (*body, *roberta_class_rules())
    return (*body, *bert_head_rules(model.head, _PREFIX))


FAMILY = Family(
    name="roformer",
    model_types=("roformer",),
    architectures=architectures("RoFormer"),
    config=_config,
    rules=_rules,
)
