"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): BERT with embeddings narrower than the hidden states.

The discriminator is served as an encoder, the generator as a masked language model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ClassificationHead, MaskedLanguageModelHead, ModelConfig
from models.families.shared.bert_config import (
    architectures,
    bert_embedding,
    bert_head,
    bert_layers,
    bert_model,
    encoder_fields,
)
from models.families.shared.bert_rules import (
    bert_layer_names,
    embedding_rules,
    layer_rules,
    linear,
    masked_rules,
    output_rules,
    roberta_class_rules,
)
from models.families.shared.family import Family
from weights.rules import Drop, Rule

_PREFIX = r"(?:electra\.)?"
_DISCRIMINATOR = "ElectraForPreTraining"


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = encoder_fields(hf, hidden_size=256, num_attention_heads=4, intermediate_size=1024)
    width = fields.integer("embedding_size", 128)
    embedding = bert_embedding(fields, width=None if width == fields.integer("hidden_size") else width)
    served_as = "ElectraModel" if architecture == _DISCRIMINATOR else architecture
    head = bert_head(fields, served_as, masked="gelu", dense="gelu")
    return bert_model(fields, head, embedding, bert_layers(fields))


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    body = (
        *embedding_rules(rf"{_PREFIX}embeddings"),
        linear(rf"{_PREFIX}embeddings_project", "encoder.embedding.projection"),
        *layer_rules(bert_layer_names(_PREFIX)),
    )
    words, unused = "generator_predictions", r"(discriminator_predictions|generator_predictions|generator_lm_head)\..*"
    match model.head:
        case ClassificationHead():
            return (*body, *roberta_class_rules(), Drop(unused))
        case MaskedLanguageModelHead():
            return (*body, *masked_rules(rf"{words}\.dense", rf"{words}\.LayerNorm", "generator_lm_head"))
        case _:
            return (*body, *output_rules(model.head), Drop(unused))


FAMILY = Family(
    name="electra",
    model_types=("electra",),
    architectures=architectures("Electra") | {_DISCRIMINATOR: ("embed",)},
    config=_config,
    rules=_rules,
)
