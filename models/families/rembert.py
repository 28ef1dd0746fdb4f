"""RemBERT (Chung et al. 2021, arXiv:2010.12821): BERT with separate tables for input and logits.

The input table is narrower than the hidden states, the table of the logits wider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import MaskedLanguageModelHead, ModelConfig
from models.families.shared.bert_config import (
    architectures,
    bert_embedding,
    bert_layers,
    bert_model,
    bert_norm,
    encoder_fields,
    encoder_head,
)
from models.families.shared.bert_rules import (
    bert_head_rules,
    bert_layer_names,
    embedding_rules,
    layer_rules,
    linear,
    norm,
)
from models.families.shared.family import Family
from weights.rules import Drop, Rename, Rule

_PREFIX = r"(?:rembert\.)?"
_SIZES = {
    "vocab_size": 250300,
    "hidden_size": 1152,
    "num_hidden_layers": 32,
    "num_attention_heads": 18,
    "intermediate_size": 4608,
}


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = encoder_fields(hf, **_SIZES)
    masked = MaskedLanguageModelHead(
        fields.activation("hidden_act"), bert_norm(fields), table_width=fields.integer("output_embedding_size", 1664)
    )
    embedding = bert_embedding(fields, width=fields.integer("input_embedding_size", 256))
    return bert_model(fields, encoder_head(fields, architecture, masked, "tanh"), embedding, bert_layers(fields))


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    body = (
        *embedding_rules(rf"{_PREFIX}embeddings"),
        linear(rf"{_PREFIX}encoder\.embedding_hidden_mapping_in", "encoder.embedding.projection"),
        *layer_rules(bert_layer_names(_PREFIX)),
    )
    if not isinstance(model.head, MaskedLanguageModelHead):
        return (*body, *bert_head_rules(model.head, _PREFIX))
    words = r"cls\.predictions"
    return (
        *body,
        linear(rf"{words}\.dense", "head.dense"),
        *norm(rf"{words}\.LayerNorm", "head.norm"),
        Rename(rf"{words}\.decoder\.(weight|bias)", r"head.\1"),
        Drop(rf"{_PREFIX}pooler\..*"),
    )


FAMILY = Family(
    name="rembert",
    model_types=("rembert",),
    architectures=architectures("RemBert"),
    config=_config,
    rules=_rules,
)
