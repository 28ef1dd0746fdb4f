"""JSON schemas that real programs write: zod, pydantic, and the tools of coding agents."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

ZOD: dict[str, dict[str, Any]] = {
    "record": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "headers": {
                "type": "object",
                "propertyNames": {"type": "string"},
                "additionalProperties": {"type": "string"},
            },
            "anything": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}},
        },
        "required": ["headers"],
        "additionalProperties": False,
    },
    "record of an enum": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "levels": {
                "type": "object",
                "propertyNames": {"type": "string", "enum": ["low", "high"]},
                "additionalProperties": {"type": "number"},
                "required": ["low", "high"],
            }
        },
        "required": ["levels"],
        "additionalProperties": False,
    },
    "discriminated union": {
        "type": "object",
        "properties": {
            "action": {
                "oneOf": [
                    {
                        "type": "object",
                        "properties": {"kind": {"type": "string", "const": kind}, kind: {"type": "string"}},
                        "required": ["kind", kind],
                        "additionalProperties": False,
                    }
                    for kind in ("read", "write")
                ]
            }
        },
        "required": ["action"],
    },
    "draft 7 tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "range": {
                "type": "array",
                "items": [{"type": "integer"}, {"type": "integer", "exclusiveMinimum": 0}],
                "minItems": 2,
                "maxItems": 2,
            },
            "tree": {"$ref": "#/definitions/node"},
        },
        "definitions": {
            "node": {
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$ref": "#/definitions/node"}}},
                "additionalProperties": False,
            }
        },
        "required": ["range", "tree"],
        "additionalProperties": False,
    },
}
"""Schemas that zod writes, by name. All of their keywords can be enforced."""

AGENTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Claude Code, SendMessage": (
        {
            "type": "object",
            "properties": {
                "to": {
                    "type": "string",
                    "allOf": [{"pattern": r"^[^\n\r]*$"}, {"pattern": r"^[\s\S]{0,300}$"}],
                },
                "summary": {"type": "string", "maxLength": 200},
            },
            "required": ["to"],
            "additionalProperties": False,
        },
        [],
    ),
    "Claude Code, Workflow": (
        {"type": "object", "properties": {"script": {"type": "string", "maxLength": 524288}}},
        ["maxLength"],
    ),
    "Claude Code, WebFetch": (
        {
            "type": "object",
            "properties": {"url": {"type": "string", "format": "uri"}, "prompt": {"type": "string"}},
            "required": ["url", "prompt"],
            "additionalProperties": False,
        },
        [],
    ),
    "Qwen Code, agent": (
        {
            "type": "object",
            "properties": {
                "fork_turns": {
                    "oneOf": [{"type": "string", "enum": ["all"]}, {"type": "string", "pattern": "^[1-9][0-9]*$"}]
                }
            },
        },
        ["oneOf"],
    ),
    "Kubernetes server, any": (
        {
            "type": "object",
            "properties": {
                "quantity": {"oneOf": [{"type": "integer"}, {"type": "number"}], "x-kubernetes-int-or-string": True},
                "name": {"type": "string", "pattern": r"^(?!-)[a-z0-9-]+(?<!-)$", "nullable": True},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 8},
            },
            "required": ["name"],
        },
        ["oneOf", "pattern"],
    ),
}
"""Schemas of tools that programs send, by name, each with the keywords that cannot be enforced."""


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, pydantic.Field(ge=0, le=9)]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    home: Path | None = None


class Node(pydantic.BaseModel):
    name: str
    children: list[Node] = []


class Everything(pydantic.BaseModel):
    """Arguments of a tool, with a field of every kind that users of pydantic-ai write."""

    path: Path
    tags: set[str]
    key: pydantic.SecretStr
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
    prices: dict[Colour, float]
    codes: dict[Annotated[str, pydantic.Field(pattern="^[a-z]+$")], int]
    raw: bytes
    tree: Node
    pair: tuple[int, str]


EVERYTHING_LOST = ["uniqueItems"]
"""Keywords in the schema of `Everything` that cannot be enforced: that the items of a set are different."""
