"""Every field of every request body has a description, in one place, and docs/api-reference.md is current."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from pydantic.json_schema import models_json_schema

from server.api.app import create_routes
from server.api.dialects import registry
from server.api.fields.field_descriptions import DESCRIPTIONS, REASONS, describe_fields, reachable
from server.api.fields.field_kinds import KIND
from server.api.fields.fields import SamplingFields
from tests.api.conftest import Bench

ROOT = Path(__file__).resolve().parents[2]
BODIES = list(dict.fromkeys(route.body for route in registry.ROUTES))
NAMES = [body.__name__ for body in BODIES]


@pytest.fixture
def schemas(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = create_routes(bench.state).openapi()["components"]["schemas"]
    return found


def test_every_field_of_every_body_has_a_description(schemas: dict[str, Any]) -> None:
    """If this fails, describe the field in server/api/fields/field_descriptions.py, or in its own class."""
    fields = {
        f"{name}.{field}": schema.get("description")
        for name in reachable(schemas, NAMES)
        for field, schema in schemas[name].get("properties", {}).items()
    }
    assert len(fields) > 300
    missing = [name for name, text in fields.items() if not text]
    assert not missing


def test_every_description_is_used() -> None:
    """Every entry of the descriptions is used by a schema. An unused entry has a wrong name, or its field is gone."""
    _, definitions = models_json_schema([(body, "validation") for body in BODIES])
    schemas = definitions["$defs"]
    used: set[str] = set()
    for name in reachable(schemas, NAMES):
        for field, schema in schemas[name].get("properties", {}).items():
            texts = REASONS if KIND in schema else DESCRIPTIONS
            if KIND in schema or "description" not in schema:
                used.add(f"{name}.{field}" if f"{name}.{field}" in texts else field)
    assert not (DESCRIPTIONS.keys() | REASONS.keys()) - used


def test_a_description_agrees_with_the_kind_of_its_field(schemas: dict[str, Any]) -> None:
    """The description says that a field has no effect, or is not supported, exactly if its kind says so."""
    says = {"accepted without effect": "hint", "dropped, and named": "wish", "not supported": "refused"}
    wrong = []
    for name in reachable(schemas, NAMES):
        for field, schema in schemas[name].get("properties", {}).items():
            text = schema["description"]
            said = next((kind for words, kind in says.items() if words in text), None)
            if said != schema.get(KIND) and (said is not None or schema[KIND] != "refused"):
                wrong.append(f"{name}.{field}: {text}")
    assert not wrong


def test_answers_get_no_description_of_requests() -> None:
    schemas = {
        "Body": {"properties": {"stream": {"type": "boolean"}, "one": {"$ref": "#/x/Inner"}}},
        "Inner": {"properties": {"seed": {"type": "integer"}, "n": {"description": "own"}}},
        "Answer": {"properties": {"seed": {"type": "integer"}}},
    }
    describe_fields(schemas, ["Body"])
    assert "description" not in schemas["Answer"]["properties"]["seed"]
    assert schemas["Inner"]["properties"]["seed"]["description"] == DESCRIPTIONS["seed"]
    assert schemas["Inner"]["properties"]["n"]["description"] == "own"


def test_the_api_reference_is_current() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "api_reference.py"))["page"]()
    assert (ROOT / "docs" / "api-reference.md").read_text() == page, "run `make reference`"


def test_the_api_reference_has_every_route_and_field(schemas: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "api-reference.md").read_text()
    assert not [route.path for route in registry.ROUTES if f"`POST {route.path}`" not in page]
    assert not [route.path for route in registry.GET_ROUTES if f"`GET {route.path}`" not in page]
    assert not [route.path for route in registry.OWNED_ROUTES if f"`{route.method} {route.path}`" not in page]
    fields = {field for name in reachable(schemas, NAMES) for field in schemas[name].get("properties", {})}
    assert not [field for field in fields if f"| `{field}` |" not in page]


def test_no_sampling_field_that_works_is_refused_or_dropped_in_a_body_that_inherits_it(schemas: dict[str, Any]) -> None:
    """A body must not refuse or drop a sampling field that its base class supports.

    A subclass may still have such a field from the time before the server supported it, and would override the base.
    """
    works = SamplingFields.model_fields.keys()
    inheriting = [body.__name__ for body in BODIES if issubclass(body, SamplingFields)]
    assert len(inheriting) > 3
    without_effect = {
        f"{name}.{field}"
        for name in inheriting
        for field, schema in schemas[name]["properties"].items()
        if field in works and schema.get(KIND) in ("wish", "refused")
    }
    assert not without_effect
