"""What RoBERTa and the families that kept its code share: BERT with positions counted from two and another head for
classes (Liu et al. 2019, arXiv:1907.11692). Not a family itself.

Position numbers start after the padding token's id, so the first rows of the table are never looked up. The reference
also gives a padding token inside a text the row of its id; here it has the position where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from models.config import ModelConfig
from models.families.shared.bert_fields import architectures, bert_model, bert_stack, encoder_fields
from models.families.shared.bert_rules import bert_layer_names, embedding_rules, layer_rules, roberta_head_rules
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from weights.rules import Drop, Rule


def _first_position(hf: Mapping[str, Any]) -> int:
    return Fields(hf).integer("pad_token_id", 1, least=0) + 1


def roberta_config(hf: Mapping[str, Any], architecture: str, *, vocab_size: int) -> ModelConfig:
    """The model of a `config.json`. vocab_size: where it names none."""
    fields = encoder_fields(hf, vocab_size=vocab_size)
    return bert_model(fields, architecture, bert_stack(fields, first_position=_first_position(hf)), masked="gelu")


def roberta_rules(
    model: ModelConfig, hf: Mapping[str, Any], architecture: str, *, prefix: str = r"(?:roberta\.)?"
) -> Sequence[Rule]:
    """The rules of all tensors. prefix: of the encoder's names, a pattern."""
    return (
        *embedding_rules(rf"{prefix}embeddings", _first_position(hf)),
        Drop(rf"{prefix}pooler\..*"),
        *layer_rules(bert_layer_names(prefix)),
        *roberta_head_rules(model.head),
    )


def roberta_family(name: str, classes: str, vocab_size: int) -> Family:
    """A family of this kind. name: also its `model_type`. classes: how transformers begins the names of its models.
    vocab_size: where the configuration names none."""
    return Family(
        name=name,
        model_types=(name,),
        architectures=architectures(classes),
        config=partial(roberta_config, vocab_size=vocab_size),
        rules=roberta_rules,
    )
