"""Longformer (Beltagy et al. 2020, arXiv:2004.05150): RoBERTa for texts of thousands of tokens.

Which tokens are global goes by the head, as in the reference: the first one to classify a text, the question to answer
it, none otherwise. A question ends where the first separator stands; the reference wants three separators in a text and
refuses others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import MaskedLanguageModelHead, ModelConfig, NormConfig
from models.families.family import Family
from models.families.fields import Fields
from models.families.longformer_layers import global_rules, with_windows
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
from models.sparse_config import BeforeToken, FirstToken
from weights.rules import Drop, Rename, Rule, Slice

_PREFIX = r"(?:longformer\.)?"


def _first_position(hf: Mapping[str, Any]) -> int:
    return Fields(hf).integer("pad_token_id", 1, least=0) + 1


def _global_tokens(fields: Fields, architecture: str) -> FirstToken | BeforeToken | None:
    match architecture:
        case "LongformerForSequenceClassification":
            return FirstToken()
        case "LongformerForQuestionAnswering":
            return BeforeToken(fields.integer("sep_token_id", 2, least=0))
    return None


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    refuse_other_attention(hf)
    fields = Fields(hf)
    layer_norm = NormConfig("layer", fields.number("layer_norm_eps", 1e-12))
    hidden_size, vocab_size = fields.integer("hidden_size", 768), fields.integer("vocab_size", 30522)
    first = _first_position(hf)
    num_positions = fields.integer("max_position_embeddings", 512, least=first + 1) - first
    stack = encoder_stack(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=fields.integer("num_hidden_layers", 12),
        num_heads=fields.integer("num_attention_heads", 12),
        intermediate_size=fields.integer("intermediate_size", 3072),
        activation=fields.activation("hidden_act", "gelu"),
        norm=layer_norm,
        num_positions=num_positions,
        num_token_types=fields.integer("type_vocab_size", 2),
    )
    chosen = head(fields, architecture, MaskedLanguageModelHead("gelu", layer_norm), dense="tanh")
    stack = with_windows(stack, hf, _global_tokens(fields, architecture))
    return ModelConfig(hidden_size, vocab_size, chosen, encoder=stack, max_positions=num_positions)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.encoder is not None
    embeddings = rf"{_PREFIX}embeddings"
    attention = rf"{_PREFIX}encoder\.layer\.(\d+)\.attention\.self"
    positions = rf"{embeddings}\.position_embeddings\.weight"
    return (
        Rename(rf"{embeddings}\.word_embeddings\.weight", "encoder.embedding.tokens.weight"),
        Slice(positions, "encoder.embedding.positions.weight", start=_first_position(hf)),
        Rename(rf"{embeddings}\.token_type_embeddings\.weight", "encoder.embedding.token_types.weight"),
        *norm(rf"{embeddings}\.LayerNorm", "encoder.embedding.norm"),
        Drop(rf"{embeddings}\.position_ids|{_PREFIX}pooler\..*"),
        *layer_rules(bert_layer_names(_PREFIX)),
        *global_rules(attention, model.encoder.layers[0].attention),
        *roberta_head_rules(model.head),
    )


FAMILY = Family(
    name="longformer",
    model_types=("longformer",),
    architectures=architectures("Longformer"),
    config=config,
    rules=rules,
)
