"""MPNet (Song et al. 2020, arXiv:2004.09297): BERT without token types, with position buckets added to the scores.

Positions count from two, as in RoBERTa, whatever `pad_token_id` says. The reference also gives a padding token inside a
text the row of its id; here it has the position where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import BucketBiasConfig, MaskedLanguageModelHead, ModelConfig, NormConfig
from models.families.family import Family
from models.families.fields import Fields
from models.families.post_norm_encoder import (
    architectures,
    bert_layer_names,
    encoder_stack,
    head,
    layer_rules,
    norm,
    refuse_other_attention,
    roberta_head_rules,
)
from weights.rules import Drop, Rename, Rule, Slice

_PREFIX = r"(?:mpnet\.)?"
_TOKENS = "encoder.embedding.tokens.weight"
_FIRST = 2
_BUCKETS = 32


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    refuse_other_attention(hf)
    fields = Fields(hf)
    fields.refuse_unless("relative_attention_num_buckets", _BUCKETS)
    layer_norm = NormConfig("layer", fields.number("layer_norm_eps", 1e-12))
    hidden_size, vocab_size = fields.integer("hidden_size", 768), fields.integer("vocab_size", 30527)
    num_positions = fields.integer("max_position_embeddings", 512, least=_FIRST + 1) - _FIRST
    stack = encoder_stack(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=fields.integer("num_hidden_layers", 12),
        num_heads=fields.integer("num_attention_heads", 12),
        intermediate_size=fields.integer("intermediate_size", 3072),
        activation=fields.activation("hidden_act", "gelu"),
        norm=layer_norm,
        num_positions=num_positions,
        num_token_types=0,
    )
    stack = replace(stack, score_bias=BucketBiasConfig(_BUCKETS, max_distance=128, bidirectional=True))
    chosen = head(fields, architecture, MaskedLanguageModelHead("gelu", layer_norm), dense="tanh")
    return ModelConfig(hidden_size, vocab_size, chosen, encoder=stack, max_positions=num_positions)


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    embeddings, attention = rf"{_PREFIX}embeddings", rf"{_PREFIX}encoder\.layer\.(\d+)\.attention"
    names = {part: rf"{attention}\.attn\.{part[0]}" for part in ("query", "key", "value", "output")}
    return (
        Rename(rf"{embeddings}\.word_embeddings\.weight", _TOKENS),
        Slice(rf"{embeddings}\.position_embeddings\.weight", "encoder.embedding.positions.weight", start=_FIRST),
        *norm(rf"{embeddings}\.LayerNorm", "encoder.embedding.norm"),
        Rename(rf"{_PREFIX}encoder\.relative_attention_bias\.weight", "encoder.score_bias.weight"),
        Drop(rf"{embeddings}\.position_ids|{_PREFIX}pooler\..*"),
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
