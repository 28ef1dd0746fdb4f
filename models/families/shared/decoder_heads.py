"""Heads of decoders besides the language model head: embeddings, classification, token labels, question answering.

transformers builds them alike for every family: the layers without language model head, and one matrix, `score` for the
last token that is not padding, or `score`, `classifier` or `qa_outputs` for every token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from models.families.shared.family import Family, Task
from models.families.shared.fields import Fields, short
from models.families.shared.rename_rules import renamed
from weights.rules import Drop, Rename, Rule

_HEAD_FIELDS = ("id2label", "num_labels", "token_classification_bias")


def with_heads(
    stem: str,
    family: Family,
    *,
    tokens: bool = True,
    answers: bool = True,
    prefix: str = r"model\.",
    body: str | None = None,
    pad_token_id: int | None = None,
) -> Family:
    """Add the heads of transformers to a family of decoders.

    stem: start of its class names in transformers.
    family: the family with the language model head only.
    tokens: whether transformers has a token classification head for it.
    answers: whether transformers has a question answering head for it.
    prefix: regular expression, prefix of the layers in the family's rules. Files of the layers alone do not have it.
    body: class name of the layers alone, if it is not `<stem>Model`.
    pad_token_id: default of the family's configuration class. The classification head reads the last token that is not
        padding.
    """
    body = body or f"{stem}Model"
    texts, labels, spans = (
        f"{stem}For{task}" for task in ("SequenceClassification", "TokenClassification", "QuestionAnswering")
    )
    heads: dict[str, tuple[Task, ...]] = {body: ("embed",), texts: ("classify",)}
    if tokens:
        heads[labels] = ("token_classify",)
    if answers:
        heads[spans] = ("question_answer",)
    language_model = next(iter(family.architectures))

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

    def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
        if architecture not in heads:
            return family.config(hf, architecture)
        return replace(family.config(hf, language_model), head=head(hf, architecture))

    def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
        if architecture not in heads:
            return family.rules(model, hf, architecture)
        layers = family.rules(replace(model, head=LanguageModelHead(tied=True)), hf, language_model)
        return (
            Rename(r"(?:score|classifier|qa_outputs)\.(weight|bias)", r"head.output.\1"),
            Drop(r"(?:lm_head|embed_out)\.(?:weight|bias)"),
            # With `qa_outputs`, the layers of several families have the prefix `transformer`.
            *renamed(layers, prefix, rf"(?:{prefix}|transformer\.)?"),
        )

    return replace(
        family, architectures={**family.architectures, **heads}, config=config, rules=rules, body=family.body or body
    )
