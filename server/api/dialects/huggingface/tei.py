"""The dialect of text-embeddings-inference, where it differs from the native dialect: `POST /predict`, and errors.

Its other routes are the native routes. The setting `dialect_errors` or a request header selects its error format.
Source: the OpenAPI document of text-embeddings-inference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, RootModel, WithJsonSchema

from server.api.fields.fields import MAX_ITEMS, Side, TimedBody
from server.api.routes.error_shape import AnswerBody, ErrorMembers, ErrorShape, named_message
from server.api.routes.route import JsonRoute, Route
from server.errors import RequestError
from server.operations.labelling.classify import ClassifySpec, LabelScore, classify

ErrorType = Literal["Unhealthy", "Backend", "Overloaded", "Validation"]
_ERROR_TYPES: dict[int, ErrorType] = {429: "Overloaded", 500: "Backend", 503: "Unhealthy", 504: "Backend"}


class TeiErrorAnswer(ErrorMembers):
    error: str
    error_type: ErrorType


def _error(error: RequestError, request_id: str) -> dict[str, str]:
    return {"error": named_message(error), "error_type": _ERROR_TYPES.get(error.status, "Validation")}


TEI_ERRORS = ErrorShape(
    statuses={500: 424},
    codes={"context_length_exceeded": 413, "request_too_large": 413},
    body=_error,
    answer=TeiErrorAnswer,
)


def _is_one(value: object) -> bool:
    """Whether a value is a list of one or two strings, which stands for one input: a text, or a pair of texts."""
    return isinstance(value, list) and len(value) in (1, 2) and all(isinstance(text, str) for text in value)


def _predict_inputs(value: Any) -> Any:
    if isinstance(value, str) or _is_one(value):
        return value
    if not isinstance(value, list) or not value or not all(map(_is_one, value)):
        raise ValueError("must be a text, a pair of texts, or a list of lists of one or two texts")
    if len(value) > MAX_ITEMS:
        raise ValueError(f"has {len(value)} items; the limit is {MAX_ITEMS}")
    return value


_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}


class TeiPredictBody(TimedBody):
    """Body of `POST /predict`. `inputs`: a text, a list of one or two strings (one input), or a list of such lists."""

    inputs: Annotated[
        Any,
        BeforeValidator(_predict_inputs),
        WithJsonSchema({"anyOf": [{"type": "string"}, _TEXTS, {"type": "array", "items": _TEXTS, "minItems": 1}]}),
    ]
    raw_scores: bool | None = None
    truncate: bool | None = None
    truncation_direction: Side | None = None

    @property
    def is_batch(self) -> bool:
        return isinstance(self.inputs, list) and isinstance(self.inputs[0], list)

    def spec(self) -> ClassifySpec:
        inputs = self.inputs if self.is_batch else [[self.inputs] if isinstance(self.inputs, str) else self.inputs]
        side = None if self.truncate is False else self.truncation_direction or "right"
        return ClassifySpec(
            [tuple(texts) for texts in inputs], self.model, None, bool(self.raw_scores), truncation=side
        )


class TeiPrediction(AnswerBody):
    label: str
    score: float


class TeiPredictAnswer(RootModel[list[TeiPrediction] | list[list[TeiPrediction]]]):
    """Labels by descending score. If the request has a list of lists, the answer has one list of labels for each."""


def _predictions(body: TeiPredictBody, found: list[list[LabelScore]]) -> Iterator[Any]:
    rendered = (({"label": label.label, "score": label.score} for label in labels) for labels in found)
    return rendered if body.is_batch else next(rendered)


ROUTES: tuple[Route[Any, Any, Any], ...] = (
    JsonRoute(
        path="/predict",
        operation="classify",
        name="predict",
        description="Labels by descending score for a text, a pair of texts, or several, as text-embeddings-inference.",
        body=TeiPredictBody,
        answer=TeiPredictAnswer,
        example=(
            {"inputs": [["I liked this film."], ["a premise", "a hypothesis"]]},
            [[{"label": "positive", "score": 0.98}], [{"label": "negative", "score": 0.91}]],
        ),
        parse=TeiPredictBody.spec,
        run=classify,
        render=_predictions,
    ),
)
