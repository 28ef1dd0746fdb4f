"""The OpenAPI document: bodies, answers, errors and an example for every route. Not used for answering requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.api.route import AnswerBody, Route, StreamingRoute

DESCRIPTION = (
    "One inference server for the three transformer families: encoders (BERT), decoders (GPT-2, LLaMA) and "
    "encoder-decoders (T5, BART, Marian). Every accepted field works, or the request fails and names the field."
)

_ERRORS = {
    401: "missing or wrong API key",
    404: "no such model",
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the body has a content type that the route does not accept",
    422: "malformed JSON, an invalid value, or a request that is too large",
    429: "the queue is full",
    500: "a fault in the engine",
    503: "loading, draining, or the worker is being replaced",
    504: "the deadline passed before the first byte",
}
_STREAM = (
    "With `stream`: server-sent events, `token` events and then `done` with the whole answer; or `error` and no `done`."
)
_FILE = {"type": "string", "format": "binary", "description": "a WAV file"}


class ErrorObject(AnswerBody):
    message: str
    type: str
    param: str | None
    code: str
    request_id: str


class ErrorAnswer(AnswerBody):
    """The body of every error response."""

    error: ErrorObject


def describe(route: Route[Any, Any, Any]) -> dict[str, Any]:
    """Arguments of `FastAPI.add_api_route`: operation id, body, and every possible answer."""
    example, answer = route.example
    content: dict[str, Any] = {"schema": _reference(route.answer), "example": answer}
    success: dict[str, Any] = {"description": "the answer", "content": {"application/json": content}}
    if route.media_type == "multipart/form-data":
        success["content"] |= {"text/plain": {"schema": {"type": "string"}}, "text/vtt": {"schema": {"type": "string"}}}
    if isinstance(route, StreamingRoute):
        success["description"] = f"the answer. {_STREAM}"
        success["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    responses: dict[int | str, dict[str, Any]] = {200: success}
    errors = {route.errors.statuses.get(status, status): text for status, text in _ERRORS.items()}
    responses |= {status: _error_response(errors[status]) for status in sorted(errors)}
    media = {"schema": _reference(route.body), "example": example}
    return {
        "operation_id": route.operation_id,
        "description": route.description,
        "responses": responses,
        "openapi_extra": {"requestBody": {"required": True, "content": {route.media_type: media}}},
    }


def describe_status(name: str, answer: type[BaseModel] | None = None, example: Any = None) -> dict[str, Any]:
    """Arguments of `FastAPI.add_api_route` for a `GET` route. answer: schema of JSON, or None for plain text."""
    content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    if answer is not None:
        content = {"application/json": {"schema": _reference(answer)} | ({"example": example} if example else {})}
    errors = (503,) if name in ("health", "ready") else (401, 500)
    responses: dict[int | str, dict[str, Any]] = {200: {"description": "the answer", "content": content}}
    responses |= {status: _error_response(_ERRORS[status]) for status in errors}
    return {"operation_id": name, "responses": responses}


def document(
    app: FastAPI, routes: Sequence[Route[Any, Any, Any]], status_answers: Sequence[type[BaseModel]]
) -> dict[str, Any]:
    """The whole OpenAPI document of an application. status_answers: answer schemas of the `GET` routes."""
    described = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    answers: dict[type[BaseModel], None] = dict.fromkeys(
        [*(route.answer for route in routes), *status_answers, ErrorAnswer]
    )
    modes: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = []
    modes += [(route.body, "validation") for route in routes]
    modes += [(answer, "serialization") for answer in answers]
    _, definitions = models_json_schema(modes, ref_template="#/components/schemas/{model}")
    schemas = definitions["$defs"]
    for route in routes:
        if route.media_type == "multipart/form-data":
            form = schemas[route.body.__name__]
            form["properties"] = {"file": _FILE, **form["properties"]}
            form["required"] = ["file"]
    components = described.setdefault("components", {})
    components["schemas"] = schemas
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    described["security"] = [{"key": []}, {}]
    return described


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _error_response(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": _reference(ErrorAnswer)}}}
