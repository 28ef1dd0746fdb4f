"""A decoder under other heads than the one for words: vectors and classes of texts, labels of tokens, answers.

transformers builds them the same way for every family: the layers without their language model head, and one matrix
`score` for the last token that is not padding, or `score`, `classifier` or `qa_outputs` for every token.
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
from models.families.shared.fields import Fields
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
    """A family of decoders, with the heads that transformers has for it besides.

    stem: what its class names begin with. tokens: whether there is a head for tokens. answers: whether
    there is one for the places of answers. prefix: what the family's rules
    call the layers, a regular expression; layers that were saved alone have names without it. body: the class of the
    layers alone, where it is not `stem` and `Model`. pad_token_id: of the class of its configurations, for files that
    name none; the head for texts reads the last other token.
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
    worded = next(iter(family.architectures))

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
            raise ConfigError("'pad_token_id' must be an integer")
        where: Literal["last", "unpadded"] = "last" if pad is None else "unpadded"
        return ClassificationHead(fields.labels(), dense=None, pool=where, bias=False, pad_token_id=pad)

    def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
        if architecture not in heads:
            return family.config(hf, architecture)
        return replace(family.config(hf, worded), head=head(hf, architecture))

    def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
        if architecture not in heads:
            return family.rules(model, hf, architecture)
        layers = family.rules(replace(model, head=LanguageModelHead(tied=True)), hf, worded)
        return (
            Rename(r"(?:score|classifier|qa_outputs)\.(weight|bias)", r"head.output.\1"),
            Drop(r"(?:lm_head|embed_out)\.(?:weight|bias)"),
            # Under `qa_outputs`, several families call their layers `transformer`.
            *renamed(layers, prefix, rf"(?:{prefix}|transformer\.)?"),
        )

    return replace(
        family, architectures={**family.architectures, **heads}, config=config, rules=rules, body=family.body or body
    )
