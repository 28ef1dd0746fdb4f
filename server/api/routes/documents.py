"""Create the OpenAPI document: bodies, answers, errors and an example of every route. It validates no requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.api.bodies.form import MULTIPART, URL_ENCODED
from server.api.fields.field_descriptions import describe_fields
from server.api.routes.error_shape import NATIVE_ERRORS, ErrorAnswer, ErrorShape
from server.api.routes.get_route import GetRoute
from server.api.routes.owned_route import OwnedRoute
from server.api.routes.route import Route
from server.api.routes.state_route import StateRoute
from server.api.routes.streaming_route import StreamingRoute

DESCRIPTION = (
    "One inference server for the three transformer families: encoders (BERT), decoders (GPT-2, LLaMA) and "
    "encoder-decoders (T5, BART, Marian). Every accepted field works, or the request fails and names the field."
)

_ERRORS = {
    401: "missing or wrong API key",
    403: "a foreign web page may have sent the request, and the server requires no API key",
    404: "no such model",
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the body has a content type that the route does not accept",
    422: "malformed JSON, an invalid value, or a request that is too large",
    429: "a limit of the server or of the API key is reached; `reason` says which one",
    500: "a fault in the engine",
    503: "loading, draining, or the worker is being replaced",
    504: "a time limit passed before the first byte",
}
_STREAM = (
    "With `stream`: server-sent events, `token` events and then `done` with the whole answer; or `error` and no `done`."
)
QUERY = "x-query"
"""Key in an OpenAPI operation: reference to the schema of all parameters in its query."""
_STATUS = "Server"
"""Name of the group for routes that belong to no dialect, such as `/health`."""
_FILE = {"type": "string", "format": "binary"}


def describe(route: Route[Any, Any, Any]) -> dict[str, Any]:
    """Keyword arguments of `FastAPI.add_api_route` for a route: operation id, body, and every possible answer."""
    example, answer = route.example
    content: dict[str, Any] = {"schema": _reference(route.answer), "example": answer}
    success: dict[str, Any] = {"description": "the answer", "content": {"application/json": content}}
    if route.operation in ("transcribe", "translate_speech"):
        success["content"] |= {"text/plain": {"schema": {"type": "string"}}, "text/vtt": {"schema": {"type": "string"}}}
    if isinstance(route, StreamingRoute):
        success["description"] = f"the answer. {_STREAM}"
        success["content"][route.format.media_type.partition(";")[0]] = {"schema": {"type": "string"}}
    responses: dict[int | str, dict[str, Any]] = {200: success}
    responses |= _error_responses(_ERRORS, route.errors)
    media: dict[str, Any] = {"schema": _reference(route.body), "example": example}
    media_types = [route.media_type, *((URL_ENCODED, MULTIPART) if route.takes_forms else ())]
    described: dict[str, Any] = {}
    if "{" in route.path:
        described["parameters"] = _path_parameters(route.path)
    if route.fields_in_query:
        success["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
        media = {"schema": _FILE, "example": "(audio)"}
        described["parameters"] = _body_parameters(route.body)
        described[QUERY] = _reference(route.body)
    described["requestBody"] = {"required": True, "content": dict.fromkeys(media_types, media)}
    return {
        "operation_id": route.operation_id,
        "description": route.description,
        "responses": responses,
        "openapi_extra": described,
    }


def describe_shared(routes: Sequence[Route[Any, Any, Any]]) -> dict[str, Any]:
    """Keyword arguments of `FastAPI.add_api_route` for a path of several dialects: all their bodies and answers."""
    merged = describe(routes[0])
    merged["description"] = " ".join(
        [routes[0].description, *(f"A body with `{route.field}`: {route.description}" for route in routes[1:])]
    )
    for other in map(describe, routes[1:]):
        _add_alternatives(merged["openapi_extra"]["requestBody"], other["openapi_extra"]["requestBody"])
        for status, response in other["responses"].items():
            _add_alternatives(merged["responses"].setdefault(status, response), response)
    return merged


def _add_alternatives(described: dict[str, Any], other: dict[str, Any]) -> None:
    """Add the schemas of another request body or response as alternatives, per media type. Changes `described`."""
    for media_type, content in other["content"].items():
        mine = described["content"].setdefault(media_type, content)
        if mine["schema"] != content["schema"]:
            alternatives = mine["schema"].get("anyOf", [mine["schema"]])
            if content["schema"] not in alternatives:
                mine["schema"] = {"anyOf": [*alternatives, content["schema"]]}


def describe_get(route: GetRoute | OwnedRoute) -> dict[str, Any]:
    """Keyword arguments of `FastAPI.add_api_route` for a route without a body."""
    content = {"application/json": {"schema": _reference(route.answer), "example": route.example}}
    responses: dict[int | str, dict[str, Any]] = {200: {"description": "the answer", "content": content}}
    found = (401, 403, 404, 422, 500, 503) if isinstance(route, OwnedRoute) else (401, 403, 404, 500, 503)
    responses |= _error_responses(found, route.errors)
    return {
        "operation_id": route.name,
        "description": route.description,
        "responses": responses,
        "openapi_extra": {"parameters": [*_path_parameters(route.path), *_query_parameters(route.parameters)]},
    }


def describe_state(route: StateRoute) -> dict[str, Any]:
    """Keyword arguments of `FastAPI.add_api_route` for a route that reads or changes stored data."""
    content = {"application/json": {"schema": _reference(route.answer), "example": route.example}}
    responses: dict[int | str, dict[str, Any]] = {route.status: {"description": "the answer", "content": content}}
    responses |= _error_responses((401, 403, 404, 413, 415, 422, 429, 500, 503), route.errors)
    parameters = [*_path_parameters(route.path), *_query_parameters(route.parameters)]
    described: dict[str, Any] = {"parameters": parameters}
    if route.lines:
        media = {"schema": {"type": "string"}, "example": route.lines}
        described["requestBody"] = {"required": True, "content": {"application/x-ndjson": media}}
    if route.body is not None:
        media = {"schema": _reference(route.body), "example": route.body_example}
        types = ("application/json", URL_ENCODED, MULTIPART)
        described["requestBody"] = {"required": True, "content": dict.fromkeys(types, media)}
    return {
        "operation_id": route.name,
        "description": route.description,
        "responses": responses,
        "openapi_extra": described,
    }


def _query_parameters(parameters: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in parameters.items()
    ]


def _body_parameters(body: type[BaseModel]) -> list[dict[str, Any]]:
    """Describe the fields of a schema as query parameters, for a route whose body is a stream of audio."""
    schema = body.model_json_schema()
    describe_fields({body.__name__: schema}, [body.__name__])
    return [
        {"name": name, "in": "query", "description": value.pop("description", ""), "schema": value}
        for name, value in schema["properties"].items()
    ]


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name.partition(":")[0], "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{([^}]*)}", path)
    ]


def describe_status(name: str, answer: type[BaseModel] | None = None, example: Any = None) -> dict[str, Any]:
    """Keyword arguments of `FastAPI.add_api_route` for a status route.

    answer: schema of the JSON answer, or None for plain text.
    """
    content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    if answer is not None:
        content = {"application/json": {"schema": _reference(answer)} | ({"example": example} if example else {})}
    errors = (403, 503) if name in ("health", "ready") else (401, 403, 500)
    responses: dict[int | str, dict[str, Any]] = {200: {"description": "the answer", "content": content}}
    responses |= _error_responses(errors, NATIVE_ERRORS)
    return {"operation_id": name, "responses": responses}


def document(
    app: FastAPI,
    routes: Sequence[Route[Any, Any, Any]],
    get_routes: Sequence[GetRoute | OwnedRoute | StateRoute],
    status_answers: Sequence[type[BaseModel]],
    clients: Mapping[str, str],
    tags: Mapping[tuple[str, str], str],
) -> dict[str, Any]:
    """Create the whole OpenAPI document of an application.

    routes: routes that run an operation. get_routes: all other routes of dialects.
    status_answers: answer schemas of the status routes, such as `/info`.
    clients: names and descriptions of the groups of routes.
    tags: group name by path and method.
    """
    described = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    dialect_routes: list[Route[Any, Any, Any] | GetRoute | OwnedRoute | StateRoute] = [*routes, *get_routes]
    dialect_answers = [answer for route in dialect_routes for answer in (route.answer, route.errors.answer)]
    answers: dict[type[BaseModel], None] = dict.fromkeys([*dialect_answers, *status_answers, ErrorAnswer])
    modes: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = []
    bodies = [route.body for route in routes]
    bodies += [route.body for route in get_routes if isinstance(route, StateRoute) and route.body is not None]
    modes += [(body, "validation") for body in dict.fromkeys(bodies)]
    modes += [(answer, "serialization") for answer in answers]
    _, definitions = models_json_schema(modes, ref_template="#/components/schemas/{model}")
    schemas = definitions["$defs"]
    describe_fields(schemas, [body.__name__ for body in dict.fromkeys(bodies)])
    for route in routes:
        if route.media_type == "multipart/form-data":
            form = schemas[route.body.__name__]
            kind = "a document" if route.operation == "translate" else "an audio file"
            form["properties"] = {"file": _FILE | {"description": kind}, **form["properties"]}
            form["required"] = list(dict.fromkeys(["file", *form.get("required", ())]))
    components = described.setdefault("components", {})
    components["schemas"] = schemas
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    described["security"] = [{"key": []}, {}]
    _group(described, clients, tags)
    return described


def _group(described: dict[str, Any], clients: Mapping[str, str], tags: Mapping[tuple[str, str], str]) -> None:
    """Set the group of each operation, and use the first sentence of its description as its summary."""
    for path, item in described["paths"].items():
        for method, operation in item.items():
            operation["tags"] = [tags.get((path, method), _STATUS)]
            operation["summary"] = re.split(r"[.;:](?:\s|$)", operation["description"], maxsplit=1)[0]
    groups = {**clients, _STATUS: "The state of the server, for operators and for probes."}
    described["tags"] = [{"name": name, "description": text} for name, text in groups.items()]


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _error_responses(statuses: Iterable[int], shape: ErrorShape) -> dict[int | str, dict[str, Any]]:
    """Descriptions of errors by the HTTP status that a dialect sends. It may send one status for several errors.

    statuses: HTTP statuses of the native dialect.
    """
    texts: dict[int, list[str]] = {}
    for status in statuses:
        texts.setdefault(shape.statuses.get(status, status), []).append(_ERRORS[status])
    content = {"application/json": {"schema": _reference(shape.answer)}}
    return {status: {"description": "; or ".join(texts[status]), "content": content} for status in sorted(texts)}
