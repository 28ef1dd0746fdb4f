"""Megatron-BERT (Shoeybi et al. 2019, arXiv:1909.08053): BERT with a norm before each sublayer.

A norm follows the last layer; no norm follows the embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig
from models.families.shared.bert_config import (
    architectures,
    bert_embedding,
    bert_head,
    bert_model,
    bert_norm,
    encoder_fields,
    pre_norm_layers,
)
from models.families.shared.bert_rules import bert_head_rules, bert_layer_names, embedding_rules, layer_rules, norm
from models.families.shared.family import Family
from weights.rules import Rule

_PREFIX = r"(?:bert\.)?"
_SIZES = {
    "vocab_size": 29056,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = encoder_fields(hf, **_SIZES)
    return bert_model(
        fields,
        bert_head(fields, architecture),
        bert_embedding(fields, norm=False),
        pre_norm_layers(fields),
        final_norm=bert_norm(fields),
    )


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer = rf"{_PREFIX}encoder\.layer\.(\d+)\."
    norms = {"attention_norm": rf"{layer}attention\.ln", "feed_forward_norm": rf"{layer}ln"}
    return (
        *embedding_rules(rf"{_PREFIX}embeddings"),
        *layer_rules(bert_layer_names(_PREFIX) | norms, norms="input"),
        *norm(rf"{_PREFIX}encoder\.ln", "encoder.final_norm"),
        *bert_head_rules(model.head, _PREFIX),
    )


FAMILY = Family(
    name="megatron-bert",
    model_types=("megatron-bert",),
    architectures=architectures("MegatronBert") | {"MegatronBertForPreTraining": ("embed", "fill_mask")},
    config=_config,
    rules=_rules,
)
