"""ERNIE 1 to 3 (Sun et al. 2019, arXiv:1904.09223; Sun et al. 2020, arXiv:1907.12412): BERT with an optional task type.

A request cannot choose the task type: every token has type 0, the default of the reference implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import ModelConfig
from models.families.shared.bert_config import (
    architectures,
    bert_embedding,
    bert_head,
    bert_layers,
    bert_model,
    encoder_fields,
)
from models.families.shared.bert_rules import bert_head_rules, bert_layer_names, embedding_rules, layer_rules
from models.families.shared.family import Family
from weights.rules import Rename, Rule

_PREFIX = r"(?:ernie\.)?"


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = encoder_fields(hf)
    task_types = fields.integer("task_type_vocab_size", 3) if fields.flag("use_task_id", False) else 0
    embedding = replace(bert_embedding(fields), num_task_types=task_types)
    return bert_model(fields, bert_head(fields, architecture), embedding, bert_layers(fields))


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (
        *embedding_rules(rf"{_PREFIX}embeddings"),
        Rename(rf"{_PREFIX}embeddings\.task_type_embeddings\.weight", "encoder.embedding.task_types.weight"),
        *layer_rules(bert_layer_names(_PREFIX)),
        *bert_head_rules(model.head, _PREFIX),
    )


FAMILY = Family(
    name="ernie",
    model_types=("ernie",),
    architectures=architectures("Ernie") | {"ErnieForPreTraining": ("embed", "fill_mask")},
    config=_config,
    rules=_rules,
)
