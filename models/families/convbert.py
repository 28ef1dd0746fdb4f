"""ConvBERT (Jiang et al. 2020, arXiv:2008.02496): ELECTRA in which convolution replaces half of the attention heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    ClassificationHead,
    ConfigError,
    ConvolutionAttentionConfig,
    MaskedLanguageModelHead,
    ModelConfig,
)
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
from models.families.shared.fields import Fields, head_width
from weights.rules import Drop, LayoutChange, Rename, Rule, block_diagonal

_PREFIX = r"(?:convbert\.)?"


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = encoder_fields(hf)
    width, groups = fields.integer("embedding_size", 768), _groups(fields)
    for name in ("hidden_size", "intermediate_size"):
        if fields.integer(name) % groups:
            raise ConfigError(f"'num_groups': {groups} groups do not divide {name!r}, {fields.integer(name)}")
    embedding = bert_embedding(fields, width=None if width == fields.integer("hidden_size") else width)
    head = bert_head(fields, architecture, masked="gelu", dense=fields.activation("hidden_act"))
    return bert_model(fields, head, embedding, bert_layers(fields, _attention(fields)))


def _attention(fields: Fields) -> ConvolutionAttentionConfig:
    """Configuration of attention with equally many self-attention heads and convolution heads, half of the width each.

    Raises ConfigError for an even `conv_kernel_size`.
    """
    hidden, kernel = fields.integer("hidden_size"), fields.integer("conv_kernel_size", 9)
    heads = max(fields.integer("num_attention_heads") // fields.integer("head_ratio", 2), 1)
    if kernel % 2 == 0:
        raise ConfigError(f"'conv_kernel_size': {kernel} is not supported, only odd numbers")
    head_dim = head_width(hidden, 2 * heads)
    return ConvolutionAttentionConfig(heads, heads, head_dim, head_dim**-0.5, causal=False, kernel_size=kernel)


def _groups(fields: Fields) -> int:
    return fields.integer("num_groups", 1)


def _transpose_groups(tensors: Sequence[Any]) -> Sequence[Any]:
    """Reshape the weight of a grouped linear layer: [groups, in / groups, out / groups] to [out, in / groups]."""
    return [tensor.transpose(1, 2).flatten(0, 1) for tensor in tensors]


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours, groups = rf"{_PREFIX}encoder\.layer\.(\d+)\.", r"encoder.layers.\1.", _groups(Fields(hf))
    attention, feed_forward = layer + r"attention\.self\.", {"intermediate": "up", "output": "down"}
    blocks: tuple[LayoutChange, ...] = (_transpose_groups, block_diagonal(groups))
    grouped = (
        Rule(layer + rf"{theirs}\.dense\.weight", (ours + f"feed_forward.{name}.weight",), blocks)
        for theirs, name in feed_forward.items()
    )
    body = (
        *embedding_rules(rf"{_PREFIX}embeddings"),
        linear(rf"{_PREFIX}embeddings_project", "encoder.embedding.projection"),
        *(grouped if groups > 1 else ()),
        *layer_rules(bert_layer_names(_PREFIX)),
        Rename(attention + r"key_conv_attn_layer\.depthwise\.weight", ours + "attention.depthwise.weight"),
        Rule(
            attention + r"key_conv_attn_layer\.pointwise\.weight",
            (ours + "attention.pointwise.weight",),
            (lambda tensors: [tensor.flatten(1) for tensor in tensors],),
        ),
        Rule(
            attention + r"key_conv_attn_layer\.bias",
            (ours + "attention.pointwise.bias",),
            (lambda tensors: [tensor.flatten() for tensor in tensors],),
        ),
        linear(attention + "conv_kernel_layer", ours + "attention.kernel"),
        linear(attention + "conv_out_layer", ours + "attention.convolved"),
    )
    words = "generator_predictions"
    match model.head:
        case ClassificationHead():
            return (*body, *roberta_class_rules())
        case MaskedLanguageModelHead():
            return (*body, *masked_rules(rf"{words}\.dense", rf"{words}\.LayerNorm", "generator_lm_head"))
        case _:
            return (*body, *output_rules(model.head), Drop(r"generator_(predictions|lm_head)\..*"))


FAMILY = Family(
    name="convbert",
    model_types=("convbert",),
    architectures=architectures("ConvBert"),
    config=_config,
    rules=_rules,
)
