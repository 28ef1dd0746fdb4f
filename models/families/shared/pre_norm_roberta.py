"""Families of RoBERTa encoders with a norm before each sublayer, and one after the last layer."""

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
from models.families.shared.bert_rules import bert_layer_names, embedding_rules, layer_rules, norm, roberta_head_rules
from models.families.shared.family import Family
from models.families.shared.roberta_encoder import first_position
from weights.rules import Drop, Rule


def pre_norm_roberta_family(
    name: str,
    classes: str,
    *,
    prefix: str,
    norms: Mapping[str, str],
    final_norm: str,
    embedding_norm: bool,
    defaults: Mapping[str, Any],
) -> Family:
    """A family of pre-norm RoBERTa encoders.

    name: name of the family and its `model_type`.
    classes: start of its class names in transformers.
    prefix: regular expression for the start of the encoder's tensor names.
    norms: regular expressions for the tensor names of `attention_norm` and `feed_forward_norm` inside a layer.
    final_norm: regular expression for the tensor name of the norm after the last layer.
    embedding_norm: whether a norm follows the embeddings.
    defaults: defaults for `config.json`, where they differ from those of BERT.
    """

    def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
        fields = encoder_fields(hf, **defaults)
        return bert_model(
            fields,
            bert_head(fields, architecture, masked="gelu"),
            bert_embedding(fields, first_position=first_position(hf), norm=embedding_norm),
            pre_norm_layers(fields),
            final_norm=bert_norm(fields),
        )

    def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
        layer = rf"{prefix}encoder\.layer\.(\d+)\."
        names = bert_layer_names(prefix) | {part: layer + theirs for part, theirs in norms.items()}
        return (
            *embedding_rules(rf"{prefix}embeddings", first_position(hf)),
            *layer_rules(names, norms="input"),
            *norm(prefix + final_norm, "encoder.final_norm"),
            Drop(rf"{prefix}pooler\..*"),
            *roberta_head_rules(model.head),
        )

    return Family(
        name=name,
        model_types=(name,),
        architectures=architectures(classes),
        config=config,
        rules=rules,
    )
