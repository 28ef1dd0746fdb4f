"""Messages about invalid values are written by us; none contains text of pydantic."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from pydantic import BaseModel

from server.api.bodies.body import validate
from server.api.dialects import registry
from server.api.dialects.native.bodies import GenerateBody, SimilarityBody, TranslateBody
from server.api.fields.schema_errors import _BOUNDS, _TYPES
from server.errors import InvalidRequest

BODIES = {route.body.__name__: route for route in registry.ROUTES if route.body.__name__ != "HubTaskBody"}
"""All body schemas except `HubTaskBody`, which documents the alternative bodies of one route. Requests are validated
against the alternatives themselves."""
LEAVES: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 70, 1.5, -1e300, "", "x", "?" * 5000, "0", "text", [], [[]], [1.5], ["x"], [None] * 5000, {}
)  # fmt: skip
PYDANTIC = re.compile(
    r"Input |should|valid (string|dict|integer|number|list|boolean)|instance|Extra|ensure|[A-Z]\w+Body|^Value"
)


def message_of(value: dict[str, Any], body: type[BaseModel]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        validate(value, body)
    return caught.value.message


def broken(value: Any, rng: random.Random) -> Any:
    """Copy an example and replace one value, at any depth, by a random value that is probably wrong."""
    if isinstance(value, dict) and value and rng.random() < 0.7:
        key = rng.choice(list(value))
        return {**value, key: broken(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return [*value[:at], broken(value[at], rng), *value[at + 1 :]]
    if isinstance(value, dict) and rng.random() < 0.5:
        return {**value, rng.choice(["type", "zz", "a-b"]): rng.choice(LEAVES)}
    return rng.choice(LEAVES)


def kinds_in(schema: Any) -> set[str]:
    """All values of `type` in the core schema of a pydantic model, at any depth."""
    if isinstance(schema, dict):
        inner = {kind for value in schema.values() for kind in kinds_in(value)}
        return inner | ({schema["type"]} if isinstance(schema.get("type"), str) else set())
    return {kind for value in schema for kind in kinds_in(value)} if isinstance(schema, (list, tuple)) else set()


@pytest.mark.parametrize("name", sorted(BODIES))
def test_no_message_has_words_of_pydantic(name: str) -> None:
    route = BODIES[name]
    rng = random.Random(name)
    example = dict(route.example[0])
    refusals = 0
    for _ in range(400):
        value = {**example}
        for field in rng.choices(sorted(route.body.model_fields), k=2):
            value[field] = broken(value.get(field), rng)
        try:
            validate(broken(value, rng) if rng.random() < 0.2 else value, route.body)
        except InvalidRequest as error:
            refusals += 1
            assert not PYDANTIC.search(error.message), error.message
            assert error.message != "has an invalid value"
    assert refusals > 100


@pytest.mark.parametrize("name", sorted(BODIES))
def test_every_error_that_a_schema_can_produce_has_words(name: str) -> None:
    """`schema_errors` has messages for every type of value in the schemas, and for no others."""
    described = {
        "str", "int", "float", "bool", "list", "dict", "model", "model-fields", "model-field", "literal", "union",
        "tagged-union", "nullable", "default", "any", "none", "constrained-str", "definitions", "definition-ref",
        "function-before", "function-after", "function-wrap", "no-info", "with-info", "field", "json", "lax-or-strict",
        "value", "general", "function-plain",
    }  # fmt: skip
    assert kinds_in(BODIES[name].body.__pydantic_core_schema__) <= described


def test_messages_name_the_field_and_the_bound() -> None:
    def generate(**fields: Any) -> str:
        return message_of({"prompt": "a", **fields}, GenerateBody)

    assert generate(temperature=-1) == "`temperature` must be at least 0"
    assert generate(top_p=2) == "`top_p` must be at most 1"
    assert generate(top_p=0) == "`top_p` must be more than 0"
    assert generate(seed="x") == "`seed` must be an integer"
    assert generate(stream=1) == "`stream` must be true or false"
    assert generate(early_stopping="x") == "`early_stopping` must be true or false or 'never'"
    assert generate(bad_words=["a", 1]) == "`bad_words[1]` must be a string"
    assert generate(stop=["a" * 257]) == "`stop[0]` must have at most 256 characters"
    assert generate(zz=1) == "unknown field `zz`"
    assert generate(response_format={"type": "zz"}).startswith(
        "`response_format` has an unknown `type`; it must be one"
    )
    assert message_of({}, GenerateBody) == "the field `prompt` is required"
    assert message_of({"inputs": "a"}, SimilarityBody) == "`inputs` must be an object"
    assert message_of({"inputs": {"sentences": ["a"]}}, SimilarityBody) == "`inputs` needs the field `source_sentence`"
    assert message_of({"inputs": "a", "format": "md"}, TranslateBody) == "`format` must be 'text', 'html' or 'xml'"


def test_the_tables_have_no_word_of_pydantic() -> None:
    assert not any(PYDANTIC.search(text) for text in [*_TYPES.values(), *_BOUNDS.values()])
