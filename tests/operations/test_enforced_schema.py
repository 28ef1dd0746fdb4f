"""The parts of a JSON schema that the grammar enforces, and the parts that it cannot enforce and that are reported.

No value that the schema accepts may be forbidden.
"""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from server.operations.grammar_compiler import CompileBudget, GrammarCompiler
from server.operations.schemas.enforced_schema import MAX_SCHEMA_BYTES, EnforcedSchema, enforce
from server.operations.schemas.json_schema import reduce_schema
from tests.grammar_compiler import COMPILER
from tests.operations.agent_tools import AGENTS, EVERYTHING_LOST, ZOD, Everything

TEXT, NUMBER = {"type": "string"}, {"type": "number"}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def enforced(schema: dict[str, Any], **settings: Any) -> EnforcedSchema:
    return enforce(schema, COMPILER, CompileBudget(), **{"is_strict": False, "is_arguments": True, **settings})


def lost(schema: dict[str, Any], **settings: Any) -> list[str]:
    """The keywords of a schema that the grammar does not enforce, sorted. It enforces all others."""
    found = enforced(schema, **settings)
    assert found.source
    return sorted({loss.keyword for loss in found.losses})


def value_schema(found: EnforcedSchema) -> dict[str, Any]:
    """The schema that the library enforces for the property `a`."""
    root = json.loads(found.source)["json_schema"]
    reference = root["properties"]["a"].get("$ref", "").removeprefix("#/$defs/")
    inner: dict[str, Any] = root["$defs"][reference] if reference else root["properties"]["a"]
    return inner


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
CASES: dict[str, tuple[Any, list[str], Any]] = {
    "unknown formats": ({"type": "string", "format": "path"}, [], {"type": "string"}),
    "secret text": ({"type": "string", "format": "password", "writeOnly": True}, [], {"type": "string"}),
    "known formats": ({"type": "string", "format": "date"}, [], {"type": "string", "format": "date"}),
    "unknown keywords": ({"type": "string", "nullable": True, "x-order": 3, "default": 1}, [], {"type": "string"}),
    "names that are texts": ({"propertyNames": {"type": ["string", "null"], "minLength": 0}}, [], {}),
    "names of any kind": ({"propertyNames": {"anyOf": [{"type": "string"}, {"type": "number"}]}}, [], {}),
    "names with two bounds": ({"propertyNames": {"minLength": 1, "maxLength": 3}}, ["propertyNames"], {}),
    "not": ({"type": "string", "not": {"const": "x"}}, ["not"], TEXT),
    "not false": ({"type": "string", "not": False}, [], TEXT),
    "unique items": ({"type": "array", "uniqueItems": True}, ["uniqueItems"], {"type": "array"}),
    "items that may repeat": ({"type": "array", "uniqueItems": False}, [], {"type": "array"}),
    "if": ({"if": {"type": "string"}, "then": {"minLength": 1}, "else": True}, ["if", "then"], {}),
    "if alone": ({"if": {"type": "string"}, "then": {}}, [], {}),
    "dependencies": ({"dependentRequired": {"b": ["c"]}, "dependentSchemas": {"b": {}}}, ["dependentRequired"], {}),
    "contains": (
        {"type": "array", "contains": TEXT, "minContains": 2, "maxContains": 3},
        ["contains", "maxContains", "minContains"],
        {"type": "array"},
    ),
    "contains nothing": ({"type": "array", "contains": TEXT, "minContains": 0}, [], {"type": "array"}),
    "min contains alone": ({"type": "array", "minContains": 2}, [], {"type": "array"}),
    "unevaluated of itself": ({"unevaluatedProperties": False}, [], {"additionalProperties": False}),
    "unevaluated of others": (
        {"allOf": [{}], "unevaluatedProperties": False},
        ["unevaluatedProperties"],
        {"allOf": [{}]},
    ),
    "one of different": ({"oneOf": [TEXT, NUMBER]}, [], {"oneOf": [TEXT, NUMBER]}),
    "one of alike": ({"oneOf": [{"type": "integer"}, NUMBER]}, ["oneOf"], {"anyOf": [{"type": "integer"}, NUMBER]}),
    "look-around": ({"type": "string", "pattern": "^(?!x)", "maxLength": 9}, ["pattern"], {**TEXT, "maxLength": 9}),
    "word boundary": ({"type": "string", "pattern": r"\bx\b"}, ["pattern"], TEXT),
    "back reference": ({"type": "string", "pattern": r"(x)\1"}, ["pattern"], TEXT),
    "pattern of names": (
        {"type": "object", "patternProperties": {"^(?!x)": TEXT}, "additionalProperties": False},
        ["additionalProperties", "patternProperties"],
        {"type": "object"},
    ),
    "remote": ({"$ref": "https://example.com/x"}, ["$ref"], {}),
    "dangling": ({"$ref": "#/$defs/none", "minLength": 1}, ["$ref"], {"minLength": 1}),
    "no address": ({"$id": "https://[", "$ref": "http://[x", "pattern": "a"}, ["$ref"], {"pattern": "a"}),
    "no fragment": ({"$ref": "/$defs/node"}, [], {"type": "object", "properties": {"next": {"$ref": "#/$defs/d0"}}}),
    "of an id": ({"$ref": "of-id#/$defs/inner"}, [], {"type": "integer"}),
    "of an anchor": ({"$ref": "#of-anchor"}, [], {"type": "boolean"}),
    "into a property": ({"$ref": "#/properties/b"}, [], TEXT),
    "endless": ({"$ref": "#/$defs/endless"}, ["$ref"], {**record(next={}), "required": ["next"]}),
    "of itself": ({"$ref": "#/$defs/itself"}, ["$ref"], {}),
    "large step": ({"type": "integer", "multipleOf": 10**13}, ["multipleOf"], {"type": "integer"}),
    "no step": ({"type": "integer", "multipleOf": 0}, ["multipleOf"], {"type": "integer"}),
    "no number": ({"type": "integer", "minimum": 5, "maximum": 3}, ["minimum"], {"type": "integer", "maximum": 3}),
    "no text": ({"type": "string", "minLength": 5, "maxLength": 3}, ["minLength"], {**TEXT, "maxLength": 3}),
    "other type": ({"type": "integer", "enum": ["1", "2"]}, ["type"], {"enum": ["1", "2"]}),
    "no such type": ({"type": "any"}, ["type"], {}),
    "no choice": ({"enum": []}, ["enum"], {}),
    "no schema": ({"properties": {"x": "string"}}, ["properties"], {"properties": {"x": True}}),
    "draft 3": ({"type": "string", "required": True}, ["required"], TEXT),
    "draft 4": (
        {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False},
        [],
        {"type": "integer", "exclusiveMinimum": 3, "maximum": 9},
    ),
    "draft 7": (
        {"items": [TEXT, NUMBER], "additionalItems": False},
        [],
        {"prefixItems": [TEXT, NUMBER], "items": False},
    ),
    "long text": ({"type": "string", "maxLength": 1_000_000}, ["maxLength"], TEXT),
    "whole numbers": (
        {"type": "array", "minItems": 1.0, "items": {"type": "string", "maxLength": 3.0}},
        [],
        {"type": "array", "minItems": 1, "items": {"type": "string", "maxLength": 3}},
    ),
    "long list": ({"type": "array", "maxItems": 1_000_000}, [], {"type": "array", "maxItems": 1_000_000}),
    "everything": (True, [], True),
}
"""Per case: the schema of a property, the keywords that are not enforced, and the schema that is enforced instead."""


@pytest.mark.parametrize("name", CASES)
def test_keywords_that_are_lost_and_kept(name: str) -> None:
    given, expected, kept = CASES[name]
    definitions = {
        "node": NODE,
        "x": {"$id": "of-id", "$defs": {"inner": {"type": "integer"}}},
        "y": {"$anchor": "of-anchor", "type": "boolean"},
        "endless": record(next={"$ref": "#/$defs/endless"}),
        "itself": {"allOf": [{"$ref": "#/$defs/itself"}]},
    }
    found = enforced({**record(a=given, b=TEXT), "$defs": definitions})
    assert sorted({loss.keyword for loss in found.losses}) == expected
    shown = value_schema(found) if given is not True else True
    if name == "of itself":
        assert shown == {"allOf": [{}]}
    else:
        assert shown == kept
    if expected:
        refused = enforced({**record(a=given, b=TEXT), "$defs": definitions}, is_strict=True)
        assert not refused.source or name == "long text"
        assert name == "long text" or refused.losses[0].keyword in expected


def test_strict_schemas_have_no_lenient_reading() -> None:
    """A strict schema means what JSON Schema says. A large length is enforced up to the limit of the grammar."""
    schema = {**record(a={"$ref": "/$defs/node"}), "$defs": {"node": NODE}}
    (loss,) = enforced(schema, is_strict=True).losses
    assert str(loss) == "cannot be enforced: `properties.a.$ref` points to no schema in this document"
    assert enforced(record(a={"type": "string", "maxLength": 100_000}), is_strict=True).source


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, ["type"]),
        ({"type": ["object", "null"], "properties": {}}, []),
        ({"anyOf": [record(a=TEXT), record(b=TEXT)]}, []),
        ({"properties": {"a": TEXT}, "required": ["a", "b"]}, []),
        ({"properties": {"a": TEXT}, "required": ["a", "b"], "additionalProperties": False}, ["required"]),
        ({"$schema": "https://unknown.example/schema", "$id": "x", "properties": {}}, []),
        ({"type": "object", "properties": None, "required": None}, ["properties", "required"]),
        ({"$ref": "#/definitions/A", "definitions": {"A": record(a=TEXT)}}, []),
        (record(a={"$ref": "#"}), ["$ref"]),
        ({"properties": {"a": {"$ref": "#"}}}, []),
    ],
)
def test_arguments_are_objects(schema: dict[str, Any], expected: list[str]) -> None:
    assert lost(schema) == expected
    assert json.loads(enforced(schema).source)["json_schema"]["type"] == "object"


def test_only_named_members_are_written_unless_the_schema_opens_them() -> None:
    def others(schema: dict[str, Any]) -> Any:
        return json.loads(enforced(schema).source)["json_schema"].get("additionalProperties", True)

    assert others({"properties": {"a": TEXT}}) is False
    assert others({"properties": {}}) is False
    for opening in (
        {"additionalProperties": True},
        {"propertyNames": TEXT},
        {"anyOf": [{}]},
        {"not": {"required": ["x"]}},
    ):
        assert others({"properties": {"a": TEXT}, **opening}) is True
    assert others({"type": "object"}) is True
    assert others({"properties": {"a": TEXT}, "required": ["b"]}) is True


@pytest.mark.parametrize("levels", [100, 112])
def test_schemas_of_100_levels(levels: int) -> None:
    objects: dict[str, Any] = TEXT
    choices: dict[str, Any] = TEXT
    for _ in range(levels):
        objects = record(a=objects)
        choices = {"anyOf": [{"type": "null"}, {"type": "array", "items": choices}]}
    assert lost(objects) == lost(record(a=choices)) == []


def test_a_schema_that_takes_too_long_is_lost_where_it_takes_long() -> None:
    hurried = GrammarCompiler(cpu_seconds=0.2)
    endless = {"type": "string", "allOf": [{"pattern": f"a{{{count},}}"} for count in range(1, 300)]}
    try:
        found = enforce(record(a=endless, b=NUMBER), hurried, CompileBudget(), is_strict=False)
        assert [(loss.keyword, loss.path) for loss in found.losses] == [("allOf", "properties.a")]
        assert value_schema(found) == TEXT
        found = enforce({**record(a=endless)}, hurried, CompileBudget(0.1), is_strict=False, is_arguments=True)
        assert found.lost_names("tools[3].input_schema") == ["tools[3].input_schema"] and not found.is_final
        assert json.loads(found.source)["json_schema"].keys() == {"type", "x-guidance"}
    finally:
        hurried.close()


def test_schemas_too_large_or_too_deep_to_be_read() -> None:
    large = record(a={"enum": ["v" * MAX_SCHEMA_BYTES]})
    deep: Any = 1
    for _ in range(2000):
        deep = [deep]
    for schema in (large, record(a={"const": deep})):
        found = enforced(schema)
        assert found.source and found.lost_names("format") == ["format"]
        assert not enforced(schema, is_strict=True).source


@pytest.mark.parametrize("name", ZOD)
def test_schemas_of_zod_lose_nothing(name: str) -> None:
    assert lost(ZOD[name]) == []
    assert enforced(ZOD[name], is_strict=True).source


@pytest.mark.parametrize("name", AGENTS)
def test_schemas_of_agents(name: str) -> None:
    schema, expected = AGENTS[name]
    assert lost(schema) == expected


def test_the_schema_of_a_pydantic_model() -> None:
    schema = Everything.model_json_schema()
    assert lost(schema) == EVERYTHING_LOST
    del schema["properties"]["tags"]["uniqueItems"]
    assert enforced(schema, is_strict=True).source


# -------------------------------------------------------------------------------- nothing valid is forbidden

_NAMES = ["a", "b", "ab", "x-1"]
_VALUES: list[Any] = [
    None,
    True,
    0,
    1,
    3,
    2.5,
    -7,
    "",
    "a",
    "abc",
    "2024-01-31",
    [],
    ["a"],
    [1, 1],
    {},
    {"a": 1},
    {"b": "x"},
]


def random_schema(chance: random.Random, depth: int) -> Any:
    if chance.random() < 0.08:
        return chance.random() < 0.8
    inner = random_schema
    makers: dict[str, Any] = {
        "type": lambda: chance.choice(
            ["string", "object", ["integer", "null"], "array", "number", ["string", "object"]]
        ),
        "enum": lambda: chance.sample(_VALUES, 3),
        "const": lambda: chance.choice(_VALUES),
        "minLength": lambda: chance.randrange(3),
        "pattern": lambda: chance.choice(["^a", "b$", "(?!a)", r"\bx", "[0-9]"]),
        "format": lambda: chance.choice(["date", "path", "uuid"]),
        "minimum": lambda: chance.randrange(-3, 3),
        "exclusiveMaximum": lambda: chance.randrange(0, 4),
        "multipleOf": lambda: chance.choice([1, 2, 0.5]),
        "minItems": lambda: chance.randrange(2),
        "uniqueItems": lambda: True,
        "required": lambda: chance.sample(_NAMES, 1),
        "minProperties": lambda: chance.randrange(2),
        "dependentRequired": lambda: {"a": ["b"]},
    }
    if depth:
        makers |= {
            "properties": lambda: {name: inner(chance, depth - 1) for name in chance.sample(_NAMES, 2)},
            "patternProperties": lambda: {chance.choice(["^a", "(?!x)", "b"]): inner(chance, depth - 1)},
            "additionalProperties": lambda: inner(chance, depth - 1),
            "propertyNames": lambda: chance.choice([{"pattern": "^a"}, {"enum": ["a", "b"]}, {"minLength": 1}, TEXT]),
            "unevaluatedProperties": lambda: inner(chance, depth - 1),
            "items": lambda: inner(chance, depth - 1),
            "prefixItems": lambda: [inner(chance, depth - 1)],
            "contains": lambda: inner(chance, depth - 1),
            "anyOf": lambda: [inner(chance, depth - 1), inner(chance, depth - 1)],
            "oneOf": lambda: [inner(chance, depth - 1), inner(chance, depth - 1)],
            "allOf": lambda: [inner(chance, depth - 1)],
            "not": lambda: inner(chance, depth - 1),
            "if": lambda: inner(chance, depth - 1),
            "then": lambda: inner(chance, depth - 1),
            "$ref": lambda: chance.choice(["#/$defs/t", "#/$defs/none", "#/$defs/r"]),
        }
    return {keyword: makers[keyword]() for keyword in chance.sample(list(makers), chance.randrange(1, 4))}


@pytest.mark.parametrize("seed", range(6))
def test_every_valid_value_stays_valid(seed: int) -> None:
    """A schema that we simplify or repair for the library still accepts every value that the original accepts."""
    chance = random.Random(seed)
    num_valid = 0
    for round in range(50):
        schema = random_schema(chance, 2)
        if isinstance(schema, bool):
            continue
        schema["$defs"] = {"t": random_schema(chance, 1), "r": {"type": "object", "properties": {"a": {"$ref": "#"}}}}
        reduced = reduce_schema(schema, lenient=True)
        shown = reduced.root.as_json() | {
            "$defs": {name: definition.as_json() for name, definition in reduced.definitions.items()}
        }
        # The library follows `oneOf` only if its branches exclude each other.
        readings = [json.loads(json.dumps(shown).replace('"oneOf"', '"anyOf"'))]
        if round < 5:
            readings.append(json.loads(enforced(schema, is_arguments=False).source)["json_schema"])
        if "#/$defs/none" in json.dumps(schema):
            schema["$defs"]["none"] = True
        valid = [value for value in _VALUES if _is_valid(schema, value)]
        num_valid += len(valid)
        for reading in readings:
            assert all(_is_valid(reading, value) for value in valid), (schema, reading)
    assert num_valid > 200


def _is_valid(schema: dict[str, Any], value: Any) -> bool:
    try:
        return jsonschema.Draft202012Validator(schema).is_valid(value)
    except RecursionError:
        return False


@pytest.mark.parametrize("name", ["a b", "<secret>", "sécret", "x" * 65, "a\nb"])
def test_an_error_repeats_only_names(name: str) -> None:
    """An error message must not repeat other texts of the schema. The name of a property may be any text."""
    (loss, *_) = enforced(record(**{name: {"type": "x"}}), is_strict=True).losses
    assert str(loss).startswith("cannot be enforced: `properties.") and name not in str(loss)
    (loss, *_) = enforced(record(a_1={"type": "x"}), is_strict=True).losses
    assert "`properties.a_1.type`" in str(loss)
