"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108): BERT with half the layers, no token types and no pooler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    ClassificationHead,
    EmbeddingConfig,
    FeedForwardConfig,
    LearnedPositions,
    MaskedLanguageModelHead,
    ModelConfig,
    NormConfig,
    PoolingHead,
    StackConfig,
)
from models.families.shared.bert_config import (
    architectures,
    encoder_attention,
    encoder_fields,
    encoder_head,
    post_norm_layer,
)
from models.families.shared.bert_rules import embedding_rules, layer_rules, linear, masked_rules, output_rules
from models.families.shared.family import Family
from weights.rules import Drop, Rule

_PREFIX = r"(?:distilbert\.)?"
_NORM = NormConfig("layer", 1e-12)


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = encoder_fields(hf)
    hidden_size, activation = fields.integer("dim", 768), fields.activation("activation", "gelu")
    layer = post_norm_layer(
        encoder_attention(hidden_size, fields.integer("n_heads", 12)),
        FeedForwardConfig(fields.integer("hidden_dim", 3072), activation),
        _NORM,
    )
    vocab_size, num_positions = fields.integer("vocab_size"), fields.integer("max_position_embeddings")
    embedding = EmbeddingConfig(vocab_size, positions=LearnedPositions(num_positions), norm=_NORM)
    return ModelConfig(
        hidden_size,
        vocab_size,
        encoder_head(fields, architecture, MaskedLanguageModelHead(activation, _NORM), dense="relu"),
        encoder=StackConfig(embedding, (layer,) * fields.integer("n_layers", 6)),
        max_positions=num_positions,
    )


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer = rf"{_PREFIX}transformer\.layer\.(\d+)"
    names = {
        "query": rf"{layer}\.attention\.q_lin",
        "key": rf"{layer}\.attention\.k_lin",
        "value": rf"{layer}\.attention\.v_lin",
        "output": rf"{layer}\.attention\.out_lin",
        "attention_norm": rf"{layer}\.sa_layer_norm",
        "up": rf"{layer}\.ffn\.lin1",
        "down": rf"{layer}\.ffn\.lin2",
        "feed_forward_norm": rf"{layer}\.output_layer_norm",
    }
    body = (
        *embedding_rules(rf"{_PREFIX}embeddings"),
        *layer_rules(names),
    )
    match model.head:
        case ClassificationHead():
            return (*body, linear("pre_classifier", "head.dense"), linear("classifier", "head.output"))
        case MaskedLanguageModelHead():
            return (*body, *masked_rules("vocab_transform", "vocab_layer_norm", "vocab_projector"))
        case PoolingHead():
            return (*body, Drop(r"vocab_(transform|layer_norm|projector)\..*"))
        case _:
            return (*body, *output_rules(model.head))


FAMILY = Family(
    name="distilbert",
    model_types=("distilbert",),
    architectures=architectures("DistilBert"),
    config=_config,
    rules=_rules,
)
