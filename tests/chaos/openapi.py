"""List the JSON routes in a running server's OpenAPI document, each with a body that the route accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from tests.waiting import HANG_SECONDS

BOUNDARIES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e-320, 1e308, -1e308, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**40,
    "", " ", "a", "0", "-1", "NaN", "\u0000", "\U0010ffff", "\u2028", "a" * 5000, [], [None], [[]], [0], [-1], ["", ""],
    [True], ["a"] * 300, {}, {"": 0}, {"type": "regex", "pattern": "("},
    {"type": "json_schema", "schema": {"$ref": "#"}},
)  # fmt: skip
"""Values at the edges of their types, and values of wrong types."""
MODELS = ("story", "translator-en-fr", "sentence-encoder", "sentiment")


@dataclass(frozen=True)
class JsonRoute:
    """A route with a JSON body. fields: schemas of its fields, by name. example: a valid body for a served model."""

    method: str
    path: str
    fields: dict[str, dict[str, Any]]
    example: dict[str, Any]


def document(url: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """Fetch the OpenAPI document of a server. url: address of the server."""
    found: dict[str, Any] = httpx.get(url + "/openapi.json", headers=headers, timeout=HANG_SECONDS).json()
    return found


def json_routes(url: str) -> list[JsonRoute]:
    """All routes with a JSON body. A path parameter is replaced by the name of a served model."""
    whole = document(url)
    found = []
    for path, item in whole["paths"].items():
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is not None:
                schemas = [_resolve(whole, branch) for branch in _branches(whole, content["schema"])]
                fields = {name: value for schema in schemas for name, value in schema.get("properties", {}).items()}
                example = content.get("example") or next(iter(content.get("examples", {}).values()), {}).get(
                    "value", {}
                )
                found.append(_accepted(url, JsonRoute(method.upper(), path, fields, example)))
    return found


def _resolve(whole: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _branches(whole: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    schema = _resolve(whole, schema)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            for branch in schema[key]:
                yield from _branches(whole, branch)
            return
    yield schema


def _accepted(url: str, route: JsonRoute) -> JsonRoute:
    """Put the first of the served models that accepts the route's example into the example.

    The route is returned unchanged if no model accepts it.
    """
    for model in MODELS:
        path = route.path.replace("{model}", model).replace("{model_id}", model)
        example = route.example | ({"model": model} if "model" in route.example else {})
        answer = httpx.request(route.method, url + path, json=example, timeout=HANG_SECONDS)
        if answer.status_code == 200:
            return JsonRoute(route.method, path, route.fields, example)
    return route


def edges(schema: dict[str, Any]) -> list[Any]:
    """Values just inside and just outside the bounds that a field's schema states."""
    found: list[Any] = []
    text = json.dumps(schema)
    for variant in [schema, *schema.get("anyOf", [])]:
        for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if isinstance(variant.get(key), int | float):
                found += [variant[key] - 1, variant[key], variant[key] + 1]
        for key in ("minLength", "maxLength"):
            if variant.get(key, 10**6) <= 100_000:
                found += ["a" * max(variant[key] - 1, 0), "a" * variant[key], "a" * (variant[key] + 1)]
        for key in ("minItems", "maxItems"):
            if variant.get(key, 10**6) <= 5000:
                found += [["a"] * max(variant[key] - 1, 0), ["a"] * variant[key], ["a"] * (variant[key] + 1)]
        found += variant.get("enum", [])
    return found if '"$ref"' not in text else [*found, {}, {"type": "unknown"}]
