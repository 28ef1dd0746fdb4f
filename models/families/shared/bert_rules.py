"""Rules for the tensor names of BERT and related encoders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from models.config import (
    ClassificationHead,
    HeadConfig,
    MaskedLanguageModelHead,
    PoolingHead,
    SpanHead,
    TokenClassificationHead,
)
from weights.rules import Drop, Rename, Rule, Slice

TOKENS = "encoder.embedding.tokens.weight"


def linear(pattern: str, name: str) -> Rule:
    """Rule for the weight and the bias of a linear layer.

    pattern: regular expression for the layer's name in the checkpoint. name: its name in the model.
    """
    groups = re.compile(pattern).groups
    return Rename(rf"{pattern}\.(weight|bias)", rf"{name}.\{groups + 1}")


def norm(pattern: str, name: str) -> tuple[Rule, Rule]:
    """Rules for the weight and the bias of a norm, which are called `gamma` and `beta` in the first checkpoints.

    pattern: regular expression for the norm's name in the checkpoint. name: its name in the model.
    """
    return (
        Rename(rf"{pattern}\.(?:weight|gamma)", f"{name}.weight"),
        Rename(rf"{pattern}\.(?:bias|beta)", f"{name}.bias"),
    )


def embedding_rules(embeddings: str, first_position: int = 0) -> tuple[Rule, ...]:
    """Rules for the embeddings of BERT.

    embeddings: regular expression for the prefix of their names in the checkpoint.
    first_position: number of leading rows of the position table that are never used and not loaded.
    """
    positions = rf"{embeddings}\.position_embeddings\.weight", "encoder.embedding.positions.weight"
    return (
        Rename(rf"{embeddings}\.word_embeddings\.weight", TOKENS),
        Slice(*positions, start=first_position) if first_position else Rename(*positions),
        Rename(rf"{embeddings}\.token_type_embeddings\.weight", "encoder.embedding.token_types.weight"),
        *norm(rf"{embeddings}\.LayerNorm", "encoder.embedding.norm"),
        Drop(rf"{embeddings}\.(position_ids|token_type_ids)"),
    )


def layer_rules(names: Mapping[str, str], norms: Literal["input", "residual"] = "residual") -> tuple[Rule, ...]:
    """Rules for the tensors of an encoder's layers.

    names: regular expressions for `query`, `key`, `value`, `output`, `attention_norm`, `up`, `down` and
        `feed_forward_norm`. Each has one group, the index of the layer.
    norms: slot of `NormSlots` with the norms: `input` for pre-norm, `residual` for post-norm.
    """
    layer = r"encoder.layers.\1"
    return (
        *(linear(names[part], f"{layer}.attention.{part}") for part in ("query", "key", "value", "output")),
        *(linear(names[part], f"{layer}.feed_forward.{part}") for part in ("up", "down")),
        *norm(names["attention_norm"], f"{layer}.attention_norms.{norms}"),
        *norm(names["feed_forward_norm"], f"{layer}.feed_forward_norms.{norms}"),
    )


def bert_layer_names(prefix: str) -> dict[str, str]:
    """Regular expressions for the names of a layer's parts in BERT and RoBERTa, as `layer_rules` expects them.

    prefix: regular expression for the start of the encoder's tensor names.
    """
    layer = rf"{prefix}encoder\.layer\.(\d+)"
    return {
        **{part: rf"{layer}\.attention\.self\.{part}" for part in ("query", "key", "value")},
        "output": rf"{layer}\.attention\.output\.dense",
        "attention_norm": rf"{layer}\.attention\.output\.LayerNorm",
        "up": rf"{layer}\.intermediate\.dense",
        "down": rf"{layer}\.output\.dense",
        "feed_forward_norm": rf"{layer}\.output\.LayerNorm",
    }


def masked_rules(dense: str, dense_norm: str, logits: str) -> tuple[Rule, ...]:
    """Rules for a masked language model head whose logits are tied to the token embeddings.

    dense, dense_norm, logits: regular expressions for the names of its dense layer, its norm and its output layer.
    """
    return (
        linear(dense, "head.dense"),
        *norm(dense_norm, "head.norm"),
        Rename(rf"{logits}\.(?:decoder\.)?bias", "head.bias"),
        Rename(rf"{logits}\.(?:decoder\.)?weight", TOKENS),
    )


def output_rules(head: HeadConfig) -> tuple[Rule, ...]:
    """Rules for the output layer of token classification and question answering heads; none for other heads."""
    match head:
        case TokenClassificationHead():
            return (linear("classifier", "head.output"),)
        case SpanHead():
            return (linear("qa_outputs", "head.output"),)
        case _:
            return ()


def bert_head_rules(head: HeadConfig, prefix: str) -> tuple[Rule, ...]:
    """Rules for the head of a BERT checkpoint and for its pooler. Tensors that `head` does not use are dropped.

    prefix: regular expression for the start of the encoder's tensor names.
    """
    pooler, words = rf"{prefix}pooler\.dense", r"cls\.predictions"
    match head:
        case ClassificationHead():
            return (linear(pooler, "head.dense"), linear("classifier", "head.output"))
        case MaskedLanguageModelHead():
            return (
                *masked_rules(rf"{words}\.transform\.dense", rf"{words}\.transform\.LayerNorm", words),
                Drop(rf"{pooler}\..*|cls\.seq_relationship\..*"),
            )
        case _:
            return (*output_rules(head), Drop(rf"{pooler}\..*|cls\..*"))


def roberta_class_rules() -> tuple[Rule, ...]:
    """Rules for the classification head of RoBERTa."""
    return (linear(r"classifier\.dense", "head.dense"), linear(r"classifier\.out_proj", "head.output"))


def roberta_head_rules(head: HeadConfig) -> tuple[Rule, ...]:
    """Rules for the head of a RoBERTa checkpoint. A model without a head drops the masked language model head."""
    match head:
        case ClassificationHead():
            return roberta_class_rules()
        case MaskedLanguageModelHead():
            return masked_rules(r"lm_head\.dense", r"lm_head\.layer_norm", "lm_head")
        case PoolingHead():
            return (Drop(r"lm_head\..*"),)
        case _:
            return output_rules(head)
