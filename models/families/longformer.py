"""Longformer (Beltagy et al. 2020, arXiv:2004.05150): RoBERTa for texts of thousands of tokens.

The head determines which tokens attend globally, as in the reference implementation: the first token for
classification, the question's tokens for question answering, otherwise none. A question ends at the first separator
token. The reference implementation refuses texts that do not have three separators; this server accepts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import AttentionConfig, ModelConfig
from models.config.sparse_attention import GlobalFirstToken, GlobalTokensBefore
from models.families.shared.bert_config import architectures, bert_attention
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.longformer_layers import global_rules, longformer_attentions
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
    def attentions(fields: Fields) -> list[AttentionConfig]:
        num_layers = fields.integer("num_hidden_layers")
        return longformer_attentions(fields, bert_attention(fields), num_layers, _global_tokens(fields, architecture))

    return roberta_config(hf, architecture, vocab_size=30522, attentions=attentions)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.encoder is not None
    attention = rf"{_PREFIX}encoder\.layer\.(\d+)\.attention\.self"
    return (
        *global_rules(attention, model.encoder.first_attention),
        *roberta_rules(model, hf, architecture, prefix=_PREFIX),
    )


FAMILY = Family(
    name="longformer",
    model_types=("longformer",),
    architectures=architectures("Longformer"),
    config=config,
    rules=rules,
)
