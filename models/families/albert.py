"""ALBERT (Lan et al. 2020, arXiv:1909.11942): BERT whose layers share weights.

Its embeddings are narrower than its hidden states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ClassificationHead, ConfigError, MaskedLanguageModelHead, ModelConfig
from models.families.shared.bert_config import (
    architectures,
    bert_attention,
    bert_embedding,
    bert_head,
    bert_layer,
    bert_model,
    encoder_fields,
)
from models.families.shared.bert_rules import embedding_rules, linear, masked_rules, norm, output_rules
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from weights.rules import Drop, Rule

_PREFIX = r"(?:albert\.)?"


def _layers_by_weights(hf: Mapping[str, Any]) -> dict[tuple[int, int], list[int]]:
    """Map each stored layer, as (index of its group, index in the group), to the layer indices that use its weights.

    Raises ConfigError for more groups than layers.
    """
    fields = Fields(hf)
    layers, groups = fields.integer("num_hidden_layers", 12), fields.integer("num_hidden_groups", 1)
    inner = fields.integer("inner_group_num", 1)
    if groups > layers:
        raise ConfigError(f"'num_hidden_groups': {groups} groups exceed {layers} layers")
    used: dict[tuple[int, int], list[int]] = {}
    for index in range(layers * inner):
        round_, place = divmod(index, inner)
        used.setdefault((int(round_ / (layers / groups)), place), []).append(index)
    return used


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    sizes = {"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384}
    fields = encoder_fields(hf, vocab_size=30000, hidden_act="gelu_new", **sizes)
    owners = {index: layers[0] for layers in _layers_by_weights(hf).values() for index in layers}
    return bert_model(
        fields,
        bert_head(fields, architecture),
        bert_embedding(fields, width=fields.integer("embedding_size", 128)),
        (bert_layer(fields, bert_attention(fields)),) * len(owners),
        sharing=[owners[index] for index in range(len(owners))],
    )


def _layer_rules(hf: Mapping[str, Any]) -> tuple[Rule, ...]:
    rules: list[Rule] = []
    for (group, place), layers in _layers_by_weights(hf).items():
        theirs = rf"{_PREFIX}encoder\.albert_layer_groups\.{group}\.albert_layers\.{place}"
        ours = f"encoder.layers.{layers[0]}"
        rules += (
            *(
                linear(rf"{theirs}\.attention\.{part}", f"{ours}.attention.{part}")
                for part in ("query", "key", "value")
            ),
            linear(rf"{theirs}\.attention\.dense", f"{ours}.attention.output"),
            *norm(rf"{theirs}\.attention\.LayerNorm", f"{ours}.attention_norms.residual"),
            linear(rf"{theirs}\.ffn", f"{ours}.feed_forward.up"),
            linear(rf"{theirs}\.ffn_output", f"{ours}.feed_forward.down"),
            *norm(rf"{theirs}\.full_layer_layer_norm", f"{ours}.feed_forward_norms.residual"),
        )
    return tuple(rules)


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    body = (
        *embedding_rules(rf"{_PREFIX}embeddings"),
        linear(rf"{_PREFIX}encoder\.embedding_hidden_mapping_in", "encoder.embedding.projection"),
        *_layer_rules(hf),
    )
    pooler, unused = rf"{_PREFIX}pooler", r"(predictions|sop_classifier)\..*"
    match model.head:
        case ClassificationHead():
            return (*body, linear(pooler, "head.dense"), linear("classifier", "head.output"), Drop(unused))
        case MaskedLanguageModelHead():
            return (
                *body,
                *masked_rules(r"predictions\.dense", r"predictions\.LayerNorm", "predictions"),
                Drop(rf"{pooler}\..*|sop_classifier\..*"),
            )
        case _:
            return (*body, *output_rules(model.head), Drop(rf"{pooler}\..*|{unused}"))


FAMILY = Family(
    name="albert",
    model_types=("albert",),
    architectures=architectures("Albert") | {"AlbertForPreTraining": ("embed", "fill_mask")},
    config=_config,
    rules=_rules,
)
