"""Longformer (Beltagy et al. 2020, arXiv:2004.05150): RoBERTa for texts of thousands of tokens.

Which tokens are global goes by the head, as in the reference: the first one to classify a text, the question to answer
it, none otherwise. A question ends where the first separator stands; the reference wants three separators in a text and
refuses others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import ModelConfig
from models.config.sparse_attention import GlobalFirstToken, GlobalTokensBefore
from models.families.shared.bert_fields import architectures
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.longformer_layers import global_rules, with_windows
from models.families.shared.roberta_encoder import roberta_config, roberta_rules
from weights.rules import Rule

_PREFIX = r"(?:longformer\.)?"


def _global_tokens(fields: Fields, architecture: str) -> GlobalFirstToken | GlobalTokensBefore | None:
    match architecture:
        case "LongformerForSequenceClassification":
            return GlobalFirstToken()
        case "LongformerForQuestionAnswering":
            return GlobalTokensBefore(fields.integer("sep_token_id", 2, least=0))
    return None


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    model = roberta_config(hf, architecture, vocab_size=30522)
    assert model.encoder is not None
    return replace(model, encoder=with_windows(model.encoder, hf, _global_tokens(Fields(hf), architecture)))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.encoder is not None
    attention = rf"{_PREFIX}encoder\.layer\.(\d+)\.attention\.self"
    return (
        *global_rules(attention, model.encoder.layers[0].attention),
        *roberta_rules(model, hf, architecture, prefix=_PREFIX),
    )


FAMILY = Family(
    name="longformer",
    model_types=("longformer",),
    architectures=architectures("Longformer"),
    config=config,
    rules=rules,
)
