"""MPNet (Song et al. 2020, arXiv:2004.09297): BERT without token types, with position buckets added to the scores.

Position indices start at 2, as in RoBERTa, whatever `pad_token_id` is. In the reference implementation every padding
token inside a text has the position index 1; here it is numbered like any other token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import BucketBiasConfig, ModelConfig
from models.families.shared.bert_config import (
    architectures,
    bert_embedding,
    bert_head,
    bert_layers,
    bert_model,
    encoder_fields,
)
from models.families.shared.bert_rules import bert_layer_names, embedding_rules, layer_rules, roberta_head_rules
from models.families.shared.family import Family
from weights.rules import Drop, Rename, Rule

_PREFIX = r"(?:mpnet\.)?"
_FIRST_POSITION = 2
_BUCKETS = 32


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = encoder_fields(hf, vocab_size=30527)
    fields.refuse_unless("relative_attention_num_buckets", _BUCKETS)
    return bert_model(
        fields,
        bert_head(fields, architecture, masked="gelu"),
        bert_embedding(fields, first_position=_FIRST_POSITION, token_types=False),
        bert_layers(fields),
        score_bias=BucketBiasConfig(_BUCKETS, max_distance=128, bidirectional=True),
    )


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    attention = rf"{_PREFIX}encoder\.layer\.(\d+)\.attention"
    names = {part: rf"{attention}\.attn\.{part[0]}" for part in ("query", "key", "value", "output")}
    return (
        *embedding_rules(rf"{_PREFIX}embeddings", _FIRST_POSITION),
        Rename(rf"{_PREFIX}encoder\.relative_attention_bias\.weight", "encoder.score_bias.weight"),
        Drop(rf"{_PREFIX}pooler\..*"),
        *layer_rules(bert_layer_names(_PREFIX) | names | {"attention_norm": rf"{attention}\.LayerNorm"}),
        *roberta_head_rules(model.head),
    )


FAMILY = Family(
    name="mpnet",
    model_types=("mpnet",),
    architectures=architectures("MPNet"),
    config=_config,
    rules=_rules,
)
