"""Encoder-decoders made of two encoders, such as `bert2bert` (Rothe et al. 2020, arXiv:1907.12461).

The second encoder becomes the decoder: its self-attention is causal, each layer has cross-attention, and the masked
language model head predicts the next token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from models.config import (
    AttentionConfig,
    ConfigError,
    HeadTransform,
    LanguageModelHead,
    LayerConfig,
    MaskedLanguageModelHead,
    ModelConfig,
    NormSlots,
    StackConfig,
)
from models.families.shared.bert_config import (
    bert_attention,
    bert_embedding,
    bert_feed_forward,
    bert_norm,
    encoder_fields,
)
from models.families.shared.bert_rules import (
    TOKENS,
    bert_head_rules,
    bert_layer_names,
    embedding_rules,
    layer_rules,
    linear,
    norm,
    roberta_head_rules,
)
from models.families.shared.family import Family
from models.families.shared.fields import Fields, short
from weights.rules import Drop, Rule


class _Half(NamedTuple):
    """A type of encoder that may be the encoder or the decoder of a pair.

    prefix: start of its tensor names in a checkpoint with a head.
    vocab_size: default of the setting `vocab_size`.
    """

    prefix: str
    vocab_size: int


_HALVES: Mapping[str, _Half] = {
    "bert": _Half("bert", 30522),
    "roberta": _Half("roberta", 50265),
    "xlm-roberta": _Half("roberta", 30522),
    "camembert": _Half("roberta", 30522),
}


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    Fields(hf).refuse_unless("tie_encoder_decoder", False)
    encoder, decoder = _part(hf, "encoder"), _part(hf, "decoder")
    source, target = _fields(encoder), _fields(decoder)
    width = target.integer("hidden_size")
    if source.integer("hidden_size") != width:
        raise ConfigError(
            f"'hidden_size' of the decoder, {width}, must be that of the encoder, {source.integer('hidden_size')}"
        )
    causal, cross = replace(bert_attention(target), causal=True), bert_attention(target)
    embedding = bert_embedding(target, first_position=_first_position(decoder))
    sizes = [_positions(fields, half) for fields, half in ((source, encoder), (target, decoder))]
    # The head of RoBERTa always uses GELU, even if the layers use another activation.
    activation = target.activation("hidden_act") if _kind(decoder) == "bert" else "gelu"
    return ModelConfig(
        hidden_size=width,
        vocab_size=embedding.vocab_size,
        head=LanguageModelHead(
            tied=target.flag("tie_word_embeddings", True),
            bias=True,
            transform=HeadTransform(activation, bert_norm(target), bias=True),
        ),
        encoder=StackConfig(
            bert_embedding(source, first_position=_first_position(encoder)),
            (_layer(source, bert_attention(source), None),) * source.integer("num_hidden_layers"),
        ),
        decoder=StackConfig(embedding, (_layer(target, causal, cross),) * target.integer("num_hidden_layers")),
        max_positions=sizes[1],
        max_source_positions=sizes[0],
    )


def _part(hf: Mapping[str, Any], side: str) -> dict[str, Any]:
    """The settings of the encoder or the decoder, in the form of an encoder-only model's settings.

    side: `encoder` or `decoder`, the key in `config.json`.
    The result has `is_decoder` and `add_cross_attention` false, because encoder-only families refuse decoders.
    Raises ConfigError if the settings are no object or name an unsupported `model_type`, and for a decoder in which
    `is_decoder` or `add_cross_attention` is false.
    """
    settings = hf.get(side)
    if not isinstance(settings, dict):
        raise ConfigError(f"{side!r} must be an object")
    if settings.get("model_type") not in _HALVES:
        raise ConfigError(
            f"{side!r}: 'model_type': {short(settings.get('model_type'))} is not supported in a pair, "
            f"only {', '.join(_HALVES)}"
        )
    if side == "decoder":
        for name in ("is_decoder", "add_cross_attention"):
            Fields({name: settings.get(name, False)}).refuse_unless(name, True)
    return {**settings, "is_decoder": False, "add_cross_attention": False}


def _kind(half: Mapping[str, Any]) -> str:
    return str(half["model_type"])


def _fields(half: Mapping[str, Any]) -> Fields:
    return encoder_fields(half, vocab_size=_HALVES[_kind(half)].vocab_size)


def _first_position(half: Mapping[str, Any]) -> int:
    """Number of leading rows of the position table that are never used.

    0 for BERT. RoBERTa numbers positions from the padding token's id plus 1.
    """
    return 0 if _kind(half) == "bert" else Fields(half).integer("pad_token_id", 1, least=0) + 1


def _positions(fields: Fields, half: Mapping[str, Any]) -> int:
    return fields.integer("max_position_embeddings") - _first_position(half)


def _layer(fields: Fields, attention: AttentionConfig, cross: AttentionConfig | None) -> LayerConfig:
    norms = NormSlots(residual=bert_norm(fields))
    return LayerConfig(
        attention,
        norms,
        bert_feed_forward(fields),
        norms,
        cross_attention=cross,
        cross_attention_norms=NormSlots() if cross is None else norms,
    )


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    halves = {side: _part(hf, side) for side in ("encoder", "decoder")}
    prefix = rf"(?:{_HALVES[_kind(halves['decoder'])].prefix}\.)?"
    return (
        *_as_side("encoder", _body_rules("", halves["encoder"])),
        *_as_side("decoder", (*_body_rules(prefix, halves["decoder"]), *_head_rules(model, halves["decoder"], prefix))),
    )


def _body_rules(prefix: str, half: Mapping[str, Any]) -> tuple[Rule, ...]:
    layer = rf"{prefix}encoder\.layer\.(\d+)\.crossattention"
    ours = r"encoder.layers.\1.cross_attention"
    return (
        *embedding_rules(rf"{prefix}embeddings", _first_position(half)),
        *layer_rules(bert_layer_names(prefix)),
        *(linear(rf"{layer}\.self\.{part}", f"{ours}.{part}") for part in ("query", "key", "value")),
        linear(rf"{layer}\.output\.dense", f"{ours}.output"),
        *norm(rf"{layer}\.output\.LayerNorm", f"{ours}_norms.residual"),
        Drop(rf"{prefix}pooler\..*"),
    )


def _head_rules(model: ModelConfig, half: Mapping[str, Any], prefix: str) -> tuple[Rule, ...]:
    assert isinstance(model.head, LanguageModelHead) and model.head.transform is not None
    assert model.head.transform.norm is not None
    masked = MaskedLanguageModelHead(model.head.transform.activation, model.head.transform.norm)
    rules = bert_head_rules(masked, prefix) if _kind(half) == "bert" else roberta_head_rules(masked)
    if model.head.tied:
        return rules
    return tuple(replace(rule, names=("head.weight",)) if rule.names == (TOKENS,) else rule for rule in rules)


def _as_side(side: str, rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Change the rules of an encoder-only family to the names of the pair's encoder or decoder.

    side: `encoder` or `decoder`. Names of parameters of the head stay as they are.
    """
    return tuple(
        replace(
            rule,
            pattern=rf"{side}\.(?:{rule.pattern})",
            names=tuple(name.replace("encoder.", f"{side}.", 1) for name in rule.names),
        )
        for rule in rules
    )


FAMILY = Family(
    name="encoder-decoder",
    model_types=("encoder-decoder",),
    architectures={"EncoderDecoderModel": ("generate",)},
    config=_config,
    rules=_rules,
)
