"""RoBERTa and the families with its code (Liu et al. 2019, arXiv:1907.11692): BERT whose positions start at 2.

Position indices start after the id of the padding token (1), so the first rows of the table are never used. The
reference implementation gives every padding token inside a text its id as position index; here it is numbered like any
other token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from models.config import AttentionConfig, ModelConfig
from models.families.shared.bert_config import (
    architectures,
    bert_embedding,
    bert_head,
    bert_layer,
    bert_layers,
    bert_model,
    encoder_fields,
)
from models.families.shared.bert_rules import bert_layer_names, embedding_rules, layer_rules, roberta_head_rules
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from weights.rules import Drop, Rule


def first_position(hf: Mapping[str, Any]) -> int:
    """Number of leading rows of the position table that are never used: the padding token's id plus 1."""
    return Fields(hf).integer("pad_token_id", 1, least=0) + 1


def roberta_config(
    hf: Mapping[str, Any],
    architecture: str,
    *,
    vocab_size: int,
    attentions: Callable[[Fields], Sequence[AttentionConfig]] | None = None,
) -> ModelConfig:
    """Model configuration from the contents of a `config.json`.

    vocab_size: the family's default.
    attentions: returns the attention of each layer for the settings; None for full attention.
    """
    fields = encoder_fields(hf, vocab_size=vocab_size)
    if attentions is None:
        layers = bert_layers(fields)
    else:
        layers = tuple(bert_layer(fields, attention) for attention in attentions(fields))
    embedding = bert_embedding(fields, first_position=first_position(hf))
    return bert_model(fields, bert_head(fields, architecture, masked="gelu"), embedding, layers)


def roberta_rules(
    model: ModelConfig, hf: Mapping[str, Any], architecture: str, *, prefix: str = r"(?:roberta\.)?"
) -> Sequence[Rule]:
    """Rules for all tensors of a model. prefix: regular expression for the start of the encoder's tensor names."""
    return (
        *embedding_rules(rf"{prefix}embeddings", first_position(hf)),
        Drop(rf"{prefix}pooler\..*"),
        *layer_rules(bert_layer_names(prefix)),
        *roberta_head_rules(model.head),
    )


def roberta_family(name: str, classes: str, vocab_size: int, prefix: str = "roberta") -> Family:
    """A family whose models are computed like RoBERTa.

    name: name of the family and its `model_type`.
    classes: start of its class names in transformers.
    vocab_size: default of the setting `vocab_size`.
    prefix: start of the encoder's tensor names in a checkpoint with a head.
    """
    return Family(
        name=name,
        model_types=(name,),
        architectures=architectures(classes),
        config=partial(roberta_config, vocab_size=vocab_size),
        rules=partial(roberta_rules, prefix=rf"(?:{prefix}\.)?"),
    )
