"""Build families of decoders: the language model, and the heads for embeddings, classification and question answering.

In transformers the heads other than the language model are the same in every family: one matrix after the layers.
Sequence classification applies the matrix `score` to the last token that is not padding. Token classification and
question answering apply `score`, `classifier` or `qa_outputs` to every token.

A model whose attention is not causal (`is_causal: false`) is an encoder. It cannot generate, so it has no language
model head. The family's rules are those of the decoder with the same layers; `decoder_family` turns their names into
names in the encoder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from models.config import (
    ClassificationHead,
    ConfigError,
    HeadConfig,
    LanguageModelHead,
    ModelConfig,
    PoolingHead,
    SpanHead,
    TokenClassificationHead,
)
from models.families.shared.family import CheckpointTask, Family
from models.families.shared.fields import Fields, short
from models.families.shared.gguf import GgufFamily
from models.families.shared.prediction_head import PredictionHead
from models.families.shared.rename_rules import renamed
from weights.rules import Drop, Rename, Rule

_GENERATE: tuple[CheckpointTask, ...] = ("generate",)
_HEAD_FIELDS = ("id2label", "num_labels", "token_classification_bias")


def decoder_family(
    name: str,
    stem: str,
    config: Callable[[Mapping[str, Any], str], ModelConfig],
    rules: Callable[[ModelConfig, Mapping[str, Any], str], Sequence[Rule]],
    *,
    model_types: tuple[str, ...] = (),
    generating: Sequence[str] = (),
    texts: bool = True,
    tokens: bool = True,
    answers: bool = True,
    prefix: str = r"model\.",
    body: str | None = None,
    pad_token_id: int | None = None,
    refused_dtypes: Mapping[str, str] = MappingProxyType({}),
    gguf: GgufFamily | None = None,
    prediction_head: Callable[[ModelConfig, Mapping[str, Any], str], PredictionHead | None] | None = None,
) -> Family:
    """Build a family of decoders with all heads that transformers has for it.

    name: name of the family.
    stem: start of the family's class names in transformers.
    config, rules: functions that build the configuration and the tensor rules of the model with a language model head.
    model_types: values of `model_type`; empty if the only value is `name`.
    generating: class names of models with a language model head; empty if the only one is `<stem>ForCausalLM`.
    texts: whether transformers has a text classification head for the family.
    tokens: whether transformers has a token classification head for the family.
    answers: whether transformers has a question answering head for the family.
    prefix: regular expression with which the layers' names in `rules` start. Checkpoints without a head do not have it.
    body: class name of the model without a head, None for `<stem>Model`.
    pad_token_id: id of the padding token if the file states none. The classification head reads the last token that is
        not padding; if this is None too, the last token.
    refused_dtypes: dtypes that give wrong numbers in this family, with the reason.
    gguf: how GGUF files of the family are read, None if they are not supported.
    prediction_head: function that describes the head for multi-token prediction; None for a family without such a head.
    """
    body = body or f"{stem}Model"
    classes, labels, spans = (
        f"{stem}For{task}" for task in ("SequenceClassification", "TokenClassification", "QuestionAnswering")
    )
    heads: dict[str, tuple[CheckpointTask, ...]] = {body: ("embed",)}
    if texts:
        heads[classes] = ("classify",)
    if tokens:
        heads[labels] = ("token_classify",)
    if answers:
        heads[spans] = ("question_answer",)
    generating = generating or (f"{stem}ForCausalLM",)

    def head(hf: Mapping[str, Any], architecture: str) -> HeadConfig:
        if architecture == body:
            return PoolingHead()
        if architecture == spans:
            return SpanHead()
        fields = Fields({name: hf[name] for name in _HEAD_FIELDS if name in hf})
        if architecture == labels:
            fields.refuse_unless("token_classification_bias", True)
            return TokenClassificationHead(fields.labels())
        pad = hf.get("pad_token_id", pad_token_id)
        if pad is not None and (not isinstance(pad, int) or isinstance(pad, bool)):
            raise ConfigError(f"'pad_token_id' must be an integer, not {short(pad)}")
        where: Literal["last", "unpadded"] = "last" if pad is None else "unpadded"
        return ClassificationHead(fields.labels(), dense=None, pool=where, bias=False, pad_token_id=pad)

    def config_of(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
        model = config(hf, generating[0] if architecture in heads else architecture)
        if model.decoder is not None:
            text = hf.get("text_config")
            for settings in (hf, text if isinstance(text, dict) else {}):
                Fields({"is_causal": settings.get("is_causal")}).refuse_unless("is_causal", True)
        elif model.encoder is not None and model.encoder.mixers:
            raise ConfigError("'is_causal': False is not supported: some layers read only earlier tokens in any case")
        elif architecture not in heads:
            raise ConfigError(
                f"{architecture!r} generates text, which needs causal attention ('is_causal' true, "
                f"'use_bidirectional_attention' false); otherwise only {', '.join(heads)} are supported"
            )
        return model if architecture not in heads else replace(model, head=head(hf, architecture))

    def rules_of(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
        if architecture not in heads:
            return rules(model, hf, architecture)
        generator = replace(_as_decoder(model), head=LanguageModelHead(tied=True))
        layers = _in_stack_of(model, rules(generator, hf, generating[0]))
        return (
            Rename(r"(?:score|classifier|qa_outputs)\.(weight|bias)", r"head.output.\1"),
            Drop(r"(?:lm_head|embed_out|output_projection)\.(?:weight|bias)"),
            # With `qa_outputs`, the layers of several families have the prefix `transformer`.
            *renamed(layers, prefix, rf"(?:{prefix}|transformer\.)?"),
        )

    def gguf_rules_of(model: ModelConfig) -> Sequence[Rule]:
        return () if gguf is None else _in_stack_of(model, gguf.rules(_as_decoder(model)))

    return Family(
        name=name,
        model_types=model_types or (name,),
        architectures={**dict.fromkeys(generating, _GENERATE), **heads},
        config=config_of,
        rules=rules_of,
        refused_dtypes=refused_dtypes,
        gguf=None if gguf is None else replace(gguf, rules=gguf_rules_of),
        body=body,
        prediction_head=prediction_head,
    )


def _as_decoder(model: ModelConfig) -> ModelConfig:
    """The model with its only stack as the decoder."""
    return model if model.encoder is None else replace(model, encoder=None, decoder=model.encoder)


def _in_stack_of(model: ModelConfig, rules: Sequence[Rule]) -> Sequence[Rule]:
    """The rules of a decoder, with names in the only stack of the model: an encoder or a decoder."""
    if model.encoder is None:
        return rules

    def own(name: str) -> str:
        return re.sub(r"^decoder\.", "encoder.", name)

    return tuple(replace(rule, names=tuple(map(own, rule.names)), constant=own(rule.constant)) for rule in rules)
