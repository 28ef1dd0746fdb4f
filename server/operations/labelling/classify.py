"""Classify texts and pairs of texts: the scores of a checkpoint's classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.descriptions import ModelInfo
from server.ipc.wire.encode_messages import Encode
from server.operations.cost import Cost, characters_of, most_tokens
from server.operations.encode import InputItems, Numbers, pair_items, sigmoid, text_items, vectors
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.tokens.truncation import TruncationSide

ScoreFunction = Literal["softmax", "sigmoid", "none"]


@dataclass(frozen=True)
class ClassifySpec:
    """Request for the scores of all classes.

    inputs: texts as (text,), pairs of texts as (first, second).
    function: converts logits to scores; None for the function that fits the checkpoint.
    raw_scores: return logits instead of scores.
    top_k: number of classes to return, by descending score; None for all.
    truncation: side on which a long text loses tokens, or None to refuse it.
    """

    inputs: Sequence[tuple[str, ...]]
    model: str | None = None
    function: ScoreFunction | None = None
    raw_scores: bool = False
    top_k: int | None = None
    truncation: TruncationSide | None = "right"

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission."""
        tokens = sum(min(most_tokens(model.tokenizer, *texts), model.max_input_tokens) for texts in self.inputs)
        numbers = len(self.inputs) * len(model.info.labels)
        return Cost(sum(map(characters_of, self.inputs)), tokens, len(self.inputs), answer_numbers=numbers)


@dataclass(frozen=True)
class LabelScore:
    """A class with its score."""

    label: str
    score: float


async def classify(runtime: Runtime, call: Call, spec: ClassifySpec) -> list[list[LabelScore]]:
    """Classify each input. Returns its classes with scores, by descending score.

    Raises InvalidRequest if `raw_scores` is combined with a function, and the errors of `text_items`.
    """
    model = runtime.candidates(spec.model, "classify")[0]
    if spec.raw_scores and spec.function not in (None, "none"):
        raise InvalidRequest("`raw_scores` cannot be combined with `function_to_apply`", "raw_scores")
    runtime.admission.admit(call, model, spec.cost(model))
    found = await _items(runtime, call, model, spec)
    call.truncated_inputs = found.truncated
    logits = await vectors(call, Encode(call.next_id(), model.name, "classify", found.items))
    function = "none" if spec.raw_scores else spec.function or _default_function(model.info)
    return [by_falling_score(row, model.info.labels)[: spec.top_k] for row in _apply(function, logits)]


def by_falling_score(scores: Numbers, labels: Sequence[str]) -> list[LabelScore]:
    """Pair labels with their scores, best first. Labels with equal scores keep their order. scores: [labels]."""
    order = np.argsort(-scores, kind="stable").tolist()
    return [LabelScore(labels[index], float(scores[index])) for index in order]


async def _items(runtime: Runtime, call: Call, model: ServedModel, spec: ClassifySpec) -> InputItems:
    """One engine item per input, in order. The tokenizer needs separate calls for texts and for pairs."""
    places = {count: [i for i, texts in enumerate(spec.inputs) if len(texts) == count] for count in (1, 2)}
    singles = [spec.inputs[i][0] for i in places[1]]
    firsts, seconds = ([spec.inputs[i][side] for i in places[2]] for side in (0, 1))
    found = {
        1: await text_items(runtime, call, model, singles, spec.truncation, "inputs"),
        2: await pair_items(runtime, call, model, firsts, seconds, spec.truncation, "inputs"),
    }
    items = {count: iter(part.items) for count, part in found.items()}
    truncated = sorted(places[count][i] for count, part in found.items() for i in part.truncated)
    return InputItems([next(items[len(texts)]) for texts in spec.inputs], truncated)


def _default_function(info: ModelInfo) -> ScoreFunction:
    """The score function for the checkpoint's problem type: none (regression), sigmoid (multi-label), or softmax."""
    if info.problem_type == "regression":
        return "none"
    if info.problem_type == "multi_label_classification" or len(info.labels) == 1:
        return "sigmoid"
    return "softmax"


def _apply(function: ScoreFunction, logits: Numbers) -> Numbers:
    if function == "softmax":
        return softmax(logits)
    return sigmoid(logits) if function == "sigmoid" else logits


def softmax(logits: Numbers) -> Numbers:
    """Softmax over the classes. logits: [n, classes]. Returns [n, classes], float32."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)
