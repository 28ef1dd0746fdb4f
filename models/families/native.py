"""Transformers trained with plain PyTorch (Vaswani et al. 2017, arXiv:1706.03762, and common variants).

Tensors have the names of `torch.nn.Transformer` and `torch.nn.TransformerEncoder`, and `config.json` has
`model_type: "triptych"` and all settings. Format: `docs/native-checkpoints.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from models.config import (
    ClassificationHead,
    ConfigError,
    HeadConfig,
    LanguageModelHead,
    ModelConfig,
    PoolingHead,
    TokenClassificationHead,
)
from models.families.shared.family import Family
from models.families.shared.fields import Fields, short
from models.families.shared.torch_layers import choice, embedding_rules, stack, stack_rules
from weights.rules import Rename, Rule

_COMMON = (
    "model_type architectures vocab_size hidden_size num_heads intermediate_size activation norm final_norm norm_eps "
    "bias positions max_positions scale_embeddings embedding_norm "
)
_LANGUAGE_MODEL = "tie_word_embeddings output_bias "
_LABELS = "num_labels id2label label2id "
_TOKENS = "bos_token_id eos_token_id pad_token_id "
_SETTINGS: Mapping[str, frozenset[str]] = {
    name: frozenset((_COMMON + more).split())
    for name, more in {
        "TriptychEncoder": "num_layers",
        "TriptychForMaskedLM": _LANGUAGE_MODEL + "num_layers",
        "TriptychForSequenceClassification": _LABELS + "num_layers classifier_reads problem_type",
        "TriptychForTokenClassification": _LABELS + "num_layers",
        "TriptychForCausalLM": _LANGUAGE_MODEL + _TOKENS + "num_layers",
        "TriptychForConditionalGeneration": _LANGUAGE_MODEL
        + _TOKENS
        + "num_encoder_layers num_decoder_layers source_vocab_size shared_embeddings decoder_start_token_id",
    }.items()
}
_BODY = ("activation", "norm", "final_norm", "positions", "scale_embeddings")
_REQUIRED = frozenset((*_BODY, "tie_word_embeddings", "shared_embeddings", "classifier_reads"))
"""Settings that a file must state: the shapes of the tensors could not reveal that a default is wrong."""
_POOLS: Mapping[str, Literal["first", "last", "mean"]] = {"first": "first", "last": "last", "mean": "mean"}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    settings = _SETTINGS[architecture]
    unknown = sorted(map(str, hf.keys() - settings))
    if unknown:
        raise ConfigError(f"{short(unknown[0])} is not a setting of {architecture}")
    missing = sorted(name for name in _REQUIRED & settings if hf.get(name) is None)
    if missing:
        raise ConfigError(f"{missing[0]!r} is missing")
    fields = Fields(hf)
    vocab, shared = fields.integer("vocab_size"), fields.flag("shared_embeddings", False)
    source_vocab = fields.integer("source_vocab_size", vocab)
    if shared and source_vocab != vocab:
        raise ConfigError("'source_vocab_size' must equal 'vocab_size' if 'shared_embeddings' is true")
    encoder = decoder = None
    if architecture == "TriptychForConditionalGeneration":
        fields.integer("decoder_start_token_id", least=0)
        encoder = stack(fields, source_vocab, fields.integer("num_encoder_layers"), causal=False)
        decoder = stack(fields, vocab, fields.integer("num_decoder_layers"), causal=True, cross_attention=True)
    elif architecture == "TriptychForCausalLM":
        decoder = stack(fields, vocab, fields.integer("num_layers"), causal=True)
    else:
        encoder = stack(fields, vocab, fields.integer("num_layers"), causal=False)
    return ModelConfig(
        hidden_size=fields.integer("hidden_size"),
        vocab_size=vocab,
        head=_head(fields, architecture),
        encoder=encoder,
        decoder=decoder,
        shared_embeddings=shared,
        max_positions=fields.integer("max_positions"),
    )


def _head(fields: Fields, architecture: str) -> HeadConfig:
    match architecture:
        case "TriptychEncoder":
            return PoolingHead()
        case "TriptychForSequenceClassification":
            return ClassificationHead(fields.labels(), None, _POOLS[choice(fields, "classifier_reads", tuple(_POOLS))])
        case "TriptychForTokenClassification":
            return TokenClassificationHead(fields.labels())
        case _:
            return LanguageModelHead(fields.flag("tie_word_embeddings", False), fields.flag("output_bias", True))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    around, slot = r"(?:transformer\.|model\.)?", "input" if hf["norm"] == "pre" else "residual"
    own, crossing = ("attention", "feed_forward"), ("attention", "cross_attention", "feed_forward")
    if model.is_encoder_decoder:
        target = "encoder" if model.shared_embeddings else "decoder"
        stacks = (
            *embedding_rules("source_", "encoder"),
            *embedding_rules("target_", "decoder"),
            *embedding_rules("", "encoder", "decoder"),
            *stack_rules(rf"{around}encoder\.", "encoder", slot, own),
            *stack_rules(rf"{around}decoder\.", "decoder", slot, crossing),
        )
    else:
        target = "encoder" if model.decoder is None else "decoder"
        prefix = around + r"(?:transformer_encoder\.|encoder\.|decoder\.)?"
        stacks = (*embedding_rules("", target), *stack_rules(prefix, target, slot, own))
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    return (
        *stacks,
        Rename(r"output\.weight", f"{target}.embedding.tokens.weight" if tied else "head.weight"),
        Rename(r"output\.bias", "head.bias"),
        Rename(r"classifier\.(weight|bias)", r"head.output.\1"),
    )


FAMILY = Family(
    name="triptych",
    model_types=("triptych",),
    architectures={
        "TriptychEncoder": ("embed",),
        "TriptychForMaskedLM": ("embed", "fill_mask"),
        "TriptychForSequenceClassification": ("classify",),
        "TriptychForTokenClassification": ("token_classify",),
        "TriptychForCausalLM": ("generate",),
        "TriptychForConditionalGeneration": ("generate", "translate"),
    },
    config=config,
    rules=rules,
)
