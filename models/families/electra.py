"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): BERT with narrow embeddings, in two kinds. The discriminator is an
encoder, the generator predicts masked words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    ClassificationHead,
    HeadConfig,
    MaskedLanguageModelHead,
    ModelConfig,
    NormConfig,
    PoolingHead,
    SpanHead,
    TokenClassificationHead,
)
from models.families.family import Family
from models.families.fields import Fields
from models.families.post_norm_encoder import (
    architectures,
    bert_layer_names,
    embedding_rules,
    encoder_stack,
    head,
    layer_rules,
    linear,
    norm,
    refuse_other_attention,
)
from weights.rules import Drop, Rename, Rule

_PREFIX = r"(?:electra\.)?"
_DISCRIMINATOR = "ElectraForPreTraining"


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    refuse_other_attention(hf)
    fields = Fields(hf)
    layer_norm = NormConfig("layer", fields.number("layer_norm_eps", 1e-12))
    hidden_size, vocab_size = fields.integer("hidden_size", 256), fields.integer("vocab_size", 30522)
    width, num_positions = fields.integer("embedding_size", 128), fields.integer("max_position_embeddings", 512)
    stack = encoder_stack(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=fields.integer("num_hidden_layers", 12),
        num_heads=fields.integer("num_attention_heads", 4),
        intermediate_size=fields.integer("intermediate_size", 1024),
        activation=fields.activation("hidden_act", "gelu"),
        norm=layer_norm,
        num_positions=num_positions,
        num_token_types=fields.integer("type_vocab_size", 2),
        embedding_width=None if width == hidden_size else width,
    )
    chosen: HeadConfig = PoolingHead()
    if architecture != _DISCRIMINATOR:
        chosen = head(fields, architecture, MaskedLanguageModelHead("gelu", layer_norm), dense="gelu")
    return ModelConfig(hidden_size, vocab_size, chosen, encoder=stack, max_positions=num_positions)


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    body = (
        *embedding_rules(rf"{_PREFIX}embeddings"),
        linear(rf"{_PREFIX}embeddings_project", "encoder.embedding.projection"),
        *layer_rules(bert_layer_names(_PREFIX)),
    )
    unused = Drop(r"(discriminator_predictions|generator_predictions|generator_lm_head)\..*")
    match model.head:
        case ClassificationHead():
            head_rules = (linear(r"classifier\.dense", "head.dense"), linear(r"classifier\.out_proj", "head.output"))
            return (*body, *head_rules, unused)
        case MaskedLanguageModelHead():
            return (
                *body,
                linear(r"generator_predictions\.dense", "head.dense"),
                *norm(r"generator_predictions\.LayerNorm", "head.norm"),
                Rename(r"generator_lm_head\.bias", "head.bias"),
                Rename(r"generator_lm_head\.weight", "encoder.embedding.tokens.weight"),
            )
        case TokenClassificationHead():
            return (*body, linear("classifier", "head.output"), unused)
        case SpanHead():
            return (*body, linear("qa_outputs", "head.output"), unused)
        case _:
            return (*body, unused)


FAMILY = Family(
    name="electra",
    model_types=("electra",),
    architectures=architectures("Electra") | {_DISCRIMINATOR: ("embed",)},
    config=_config,
    rules=_rules,
)
