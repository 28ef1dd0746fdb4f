"""BERT (Devlin et al. 2019, arXiv:1810.04805): post-norm encoder with learned positions and token types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from models.families.shared.gguf import GgufFamily, Settings, encoder_settings
from weights.gguf.metadata import Metadata
from weights.rules import Rule

_PREFIX = r"(?:bert\.)?"


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = encoder_fields(hf)
    return bert_model(fields, bert_head(fields, architecture), bert_embedding(fields), bert_layers(fields))


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (
        *embedding_rules(rf"{_PREFIX}embeddings"),
        *layer_rules(bert_layer_names(_PREFIX)),
        *bert_head_rules(model.head, _PREFIX),
    )


def gguf_settings(of: Metadata) -> Settings:
    return encoder_settings(of, "bert", "BertModel")


FAMILY = Family(
    name="bert",
    model_types=("bert",),
    architectures=architectures("Bert") | {"BertForPreTraining": ("embed", "fill_mask")},
    config=_config,
    rules=_rules,
    gguf=GgufFamily({"bert": gguf_settings}),
)
