"""What RoBERTa and the families that kept its code share: BERT with positions counted from two and another head for
classes (Liu et al. 2019, arXiv:1907.11692). Not a family itself.

Position numbers start after the padding token's id, so the first rows of the table are never looked up. The reference
also gives a padding token inside a text the row of its id; here it has the position where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from models.config import MaskedLanguageModelHead, ModelConfig, NormConfig
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

_PREFIX = r"(?:roberta\.)?"
_TOKENS = "encoder.embedding.tokens.weight"


def _first_position(hf: Mapping[str, Any]) -> int:
    return Fields(hf).integer("pad_token_id", 1, least=0) + 1


def _config(hf: Mapping[str, Any], architecture: str, default_vocab: int) -> ModelConfig:
    refuse_other_attention(hf)
    fields = Fields(hf)
    layer_norm = NormConfig("layer", fields.number("layer_norm_eps", 1e-12))
    hidden_size, vocab_size = fields.integer("hidden_size", 768), fields.integer("vocab_size", default_vocab)
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
    return ModelConfig(hidden_size, vocab_size, chosen, encoder=stack, max_positions=num_positions)


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    embeddings = rf"{_PREFIX}embeddings"
    positions = rf"{embeddings}\.position_embeddings\.weight"
    return (
        Rename(rf"{embeddings}\.word_embeddings\.weight", _TOKENS),
        Slice(positions, "encoder.embedding.positions.weight", start=_first_position(hf)),
        Rename(rf"{embeddings}\.token_type_embeddings\.weight", "encoder.embedding.token_types.weight"),
        *norm(rf"{embeddings}\.LayerNorm", "encoder.embedding.norm"),
        Drop(rf"{embeddings}\.(position_ids|token_type_ids)|{_PREFIX}pooler\..*"),
        *layer_rules(bert_layer_names(_PREFIX)),
        *roberta_head_rules(model.head),
    )


def roberta_family(name: str, classes: str, vocab_size: int) -> Family:
    """A family of this kind. name: also its `model_type`. classes: how transformers begins the names of its models.
    vocab_size: where the configuration names none."""
    return Family(
        name=name,
        model_types=(name,),
        architectures=architectures(classes),
        config=partial(_config, default_vocab=vocab_size),
        rules=_rules,
    )
