"""ALBERT (Lan et al. 2020, arXiv:1909.11942): BERT with narrow embeddings, and layers that share their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import (
    ClassificationHead,
    ConfigError,
    MaskedLanguageModelHead,
    ModelConfig,
    NormConfig,
    SpanHead,
    TokenClassificationHead,
)
from models.families.family import Family
from models.families.fields import Fields
from models.families.post_norm_encoder import (
    architectures,
    embedding_rules,
    encoder_stack,
    head,
    linear,
    norm,
    refuse_other_attention,
)
from weights.rules import Drop, Rename, Rule

_PREFIX = r"(?:albert\.)?"


def _owners(hf: Mapping[str, Any]) -> dict[tuple[int, int], list[int]]:
    """The layers that each set of weights is used in, by its group and its place in the group."""
    fields = Fields(hf)
    layers, groups = fields.integer("num_hidden_layers", 12), fields.integer("num_hidden_groups", 1)
    inner = fields.integer("inner_group_num", 1)
    if groups > layers:
        raise ConfigError(f"'num_hidden_groups': {groups} groups are more than {layers} layers")
    used: dict[tuple[int, int], list[int]] = {}
    for index in range(layers * inner):
        round_, place = divmod(index, inner)
        used.setdefault((int(round_ / (layers / groups)), place), []).append(index)
    return used


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    refuse_other_attention(hf)
    fields = Fields(hf)
    layer_norm = NormConfig("layer", fields.number("layer_norm_eps", 1e-12))
    hidden_size, vocab_size = fields.integer("hidden_size", 4096), fields.integer("vocab_size", 30000)
    num_positions, activation = (
        fields.integer("max_position_embeddings", 512),
        fields.activation("hidden_act", "gelu_new"),
    )
    sharing = {index: layers[0] for layers in _owners(hf).values() for index in layers}
    stack = encoder_stack(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=len(sharing),
        num_heads=fields.integer("num_attention_heads", 64),
        intermediate_size=fields.integer("intermediate_size", 16384),
        activation=activation,
        norm=layer_norm,
        num_positions=num_positions,
        num_token_types=fields.integer("type_vocab_size", 2),
        embedding_width=fields.integer("embedding_size", 128),
    )
    stack = replace(stack, sharing=tuple(sharing[index] for index in range(len(sharing))))
    chosen = head(fields, architecture, MaskedLanguageModelHead(activation, layer_norm), dense="tanh")
    return ModelConfig(hidden_size, vocab_size, chosen, encoder=stack, max_positions=num_positions)


def _layer_rules(hf: Mapping[str, Any]) -> tuple[Rule, ...]:
    rules: list[Rule] = []
    for (group, place), layers in _owners(hf).items():
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
                linear(r"predictions\.dense", "head.dense"),
                *norm(r"predictions\.LayerNorm", "head.norm"),
                Rename(r"predictions\.(?:decoder\.)?bias", "head.bias"),
                Rename(r"predictions\.decoder\.weight", "encoder.embedding.tokens.weight"),
                Drop(rf"{pooler}\..*|sop_classifier\..*"),
            )
        case TokenClassificationHead():
            return (*body, linear("classifier", "head.output"), Drop(rf"{pooler}\..*|{unused}"))
        case SpanHead():
            return (*body, linear("qa_outputs", "head.output"), Drop(rf"{pooler}\..*|{unused}"))
        case _:
            return (*body, Drop(rf"{pooler}\..*|{unused}"))


FAMILY = Family(
    name="albert",
    model_types=("albert",),
    architectures=architectures("Albert") | {"AlbertForPreTraining": ("embed", "fill_mask")},
    config=_config,
    rules=_rules,
)
