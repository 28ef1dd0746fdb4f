"""BERT (Devlin et al. 2019, arXiv:1810.04805): embeddings, masked words, classification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    ClassificationHead,
    MaskedLanguageModelHead,
    ModelConfig,
    NormConfig,
    SpanHead,
    TokenClassificationHead,
)
from models.families.family import Family
from models.families.fields import Fields
from models.families.post_norm_encoder import (
    architectures,
    bert_layer_names,
    embedding_rules,
    encoder_stack,
    head,
    layer_rules,
    linear,
    norm,
    refuse_other_attention,
)
from weights.rules import Drop, Rename, Rule

_PREFIX = r"(?:bert\.)?"
_TOKENS = "encoder.embedding.tokens.weight"


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    refuse_other_attention(hf)
    fields = Fields(hf)
    layer_norm = NormConfig("layer", fields.number("layer_norm_eps", 1e-12))
    hidden_size, vocab_size = fields.integer("hidden_size", 768), fields.integer("vocab_size", 30522)
    num_positions = fields.integer("max_position_embeddings", 512)
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
    chosen = head(
        fields, architecture, MaskedLanguageModelHead(fields.activation("hidden_act", "gelu"), layer_norm), dense="tanh"
    )
    return ModelConfig(hidden_size, vocab_size, chosen, encoder=stack, max_positions=num_positions)


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    body = (*embedding_rules(rf"{_PREFIX}embeddings"), *layer_rules(bert_layer_names(_PREFIX)))
    pooler = rf"{_PREFIX}pooler\.dense"
    match model.head:
        case ClassificationHead():
            return (*body, linear(pooler, "head.dense"), linear("classifier", "head.output"))
        case MaskedLanguageModelHead():
            return (
                *body,
                linear(r"cls\.predictions\.transform\.dense", "head.dense"),
                *norm(r"cls\.predictions\.transform\.LayerNorm", "head.norm"),
                Rename(r"cls\.predictions\.(?:decoder\.)?bias", "head.bias"),
                Rename(r"cls\.predictions\.decoder\.weight", _TOKENS),
                Drop(rf"{pooler}\..*|cls\.seq_relationship\..*"),
            )
        case TokenClassificationHead():
            return (*body, linear("classifier", "head.output"), Drop(rf"{pooler}\..*|cls\..*"))
        case SpanHead():
            return (*body, linear("qa_outputs", "head.output"), Drop(rf"{pooler}\..*|cls\..*"))
        case _:
            return (*body, Drop(rf"{pooler}\..*|cls\..*"))


FAMILY = Family(
    name="bert",
    model_types=("bert",),
    architectures=architectures("Bert") | {"BertForPreTraining": ("embed", "fill_mask")},
    config=_config,
    rules=_rules,
)
