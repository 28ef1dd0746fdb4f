"""Removes the references of a reduced schema that no finite value could match."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.operations.schemas.reduced_schema import Loss, ReducedSchema, Subschema
from server.operations.schemas.schema_keywords import TYPES


def cut_endless_references(reduced: ReducedSchema) -> None:
    """Remove references by which a definition requires itself, because no finite value could match it."""
    finite: set[str] = set()
    is_growing = True
    while is_growing:
        new = {
            name
            for name, definition in reduced.definitions.items()
            if name not in finite and _can_end(definition, finite)
        }
        finite |= new
        is_growing = bool(new)
    for name in reduced.definitions.keys() - finite:
        pending = [reduced.definitions[name]]
        while pending:
            schema = pending.pop()
            pending += schema.inner()
            if schema.keywords.get("$ref", "").removeprefix("#/$defs/") in reduced.definitions.keys() - finite:
                del schema.keywords["$ref"]
                reduced.losses.append(Loss("$ref", schema.path, "requires itself without an end"))


def _can_end(schema: Subschema | bool, finite: set[str]) -> bool:
    """Whether a finite value may match a schema. finite: names of definitions that finite values can match."""
    if isinstance(schema, bool):
        return schema
    has = schema.keywords
    if "$ref" in has and has["$ref"].removeprefix("#/$defs/") not in finite:
        return False
    if not all(_can_end(subschema, finite) for subschema in has.get("allOf", ())):
        return False
    if not all(
        any(_can_end(subschema, finite) for subschema in has[choice]) for choice in ("anyOf", "oneOf") if choice in has
    ):
        return False
    types = has.get("type", list(TYPES))
    others = set([types] if isinstance(types, str) else types) - {"object", "array"}
    return bool(others) or ("object" in types and _object_can_end(has, finite)) or _array_can_end(has, types, finite)


def _object_can_end(has: Mapping[str, Any], finite: set[str]) -> bool:
    properties, other = has.get("properties", {}), has.get("additionalProperties", True)
    return all(_can_end(properties.get(name, other), finite) for name in has.get("required", ()))


def _array_can_end(has: Mapping[str, Any], types: Any, finite: set[str]) -> bool:
    first = has.get("prefixItems", [])[: int(has.get("minItems", 0))]
    has_more = has.get("minItems", 0) > len(first)
    needed = [*first, *([has.get("items", True)] if has_more else [])]
    return "array" in types and all(_can_end(subschema, finite) for subschema in needed)
