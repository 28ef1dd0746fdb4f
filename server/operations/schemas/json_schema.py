"""Reduce a JSON Schema to the part that a grammar can enforce, and list the keywords that are lost.

The reduced schema accepts every value that the schema accepts, and further values if keywords were lost. Older drafts
are translated to 2020-12. Only references within the schema are followed.
See docs/decisions/0118-schemas-that-are-not-strict.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.operations.schemas.endless_references import cut_endless_references
from server.operations.schemas.reduced_schema import Loss, ReducedSchema, Subschema
from server.operations.schemas.schema_keywords import (
    KEYWORDS,
    SCHEMA_SHAPES,
    UNENFORCED,
    VALUES,
    accepts_all_texts,
    is_count,
    is_format,
    text_constraints,
)
from server.operations.schemas.schema_references import References

MAX_INLINE_LEVELS = 24
"""Subschemas at a deeper level become definitions, because the library reads at most 128 levels of JSON."""
MAX_TEXT_LENGTH = 2048
"""Maximum enforced `minLength` and `maxLength`, unless the schema is strict.

Each character of such a text needs about 9 states of a grammar, and a grammar with more than 32,768 states fails.
"""
_IN_PLACE = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "not", "$dynamicRef"})
"""Keywords that apply further schemas to the same value. The meaning of `unevaluated...` depends on them."""


def reduce_schema(schema: Mapping[str, Any], lenient: bool) -> ReducedSchema:
    """Reduce a schema to the part that a grammar can enforce.

    lenient: leave out lengths of texts above `MAX_TEXT_LENGTH`, and follow references that lack their `#`.
    """
    reducer = _Reducer(schema, lenient)
    root = reducer.subschema(schema, "")
    for raw, path, name in reducer.pending:  # grows meanwhile
        reducer.definitions[name] = reducer.subschema(raw, path)
    reduced = ReducedSchema(root, reducer.definitions, reducer.losses)
    cut_endless_references(reduced)
    return reduced


class _Reducer:
    """Reduces one schema to the part that a grammar can enforce. root: the whole schema.

    lenient: argument of `reduce_schema`.

    pending: definitions that are not reduced yet, as (schema, path, name). The list grows while it is read.
    """

    def __init__(self, root: Mapping[str, Any], lenient: bool) -> None:
        self.pending: list[tuple[Mapping[str, Any], str, str]] = []
        self.definitions: dict[str, Subschema] = {}
        self.losses: list[Loss] = []
        self._references = References(root)
        self._lenient = lenient
        self._names: dict[int, str] = {}

    def subschema(self, raw: Mapping[str, Any], path: str, level: int = 0) -> Subschema:
        """Reduce a subschema. level: its depth within the root or within a definition."""
        reduced = Subschema(path)
        for keyword, value in _in_latest_draft(self._with_named_properties(raw)).items():
            self._add(reduced, raw, keyword, value, level)
        return reduced

    def _add(self, reduced: Subschema, raw: Mapping[str, Any], keyword: str, value: Any, level: int) -> None:
        if keyword in UNENFORCED:
            if UNENFORCED[keyword](value, raw):
                self._lose(reduced, keyword, "cannot be enforced")
        elif keyword == "$ref":
            self._add_reference(reduced, raw, value)
        elif keyword == "format":
            if is_format(value):
                reduced.keywords[keyword] = value
        elif keyword in VALUES:
            if not VALUES[keyword](value):
                self._lose(reduced, keyword, "has a value that is not valid or too large")
            elif self._lenient and keyword in ("minLength", "maxLength") and value > MAX_TEXT_LENGTH:
                self._lose(reduced, keyword, "is too large to be enforced")
            else:
                # JSON Schema counts 3.0 as an integer. The library does not.
                reduced.keywords[keyword] = int(value) if VALUES[keyword] is is_count else value
        elif keyword in SCHEMA_SHAPES:
            self._add_subschemas(reduced, keyword, value, level)

    def _add_subschemas(self, reduced: Subschema, keyword: str, value: Any, level: int) -> None:
        path = f"{reduced.path}.{keyword}" if reduced.path else keyword
        inner: Any
        if SCHEMA_SHAPES[keyword] == "map" and isinstance(value, Mapping):
            inner = {name: self._inner(subschema, f"{path}.{name}", level) for name, subschema in value.items()}
            is_valid = None not in inner.values()
            inner = {name: True if subschema is None else subschema for name, subschema in inner.items()}
        elif SCHEMA_SHAPES[keyword] == "list" and isinstance(value, list) and value:
            read = self._branch if keyword == "oneOf" else self._inner
            inner = [read(subschema, f"{path}.{index}", level) for index, subschema in enumerate(value)]
            is_valid = None not in inner
            inner = [True if subschema is None else subschema for subschema in inner]
        else:
            inner = self._inner(value, path, level) if SCHEMA_SHAPES[keyword] == "one" else None
            is_valid = inner is not None
        if inner is not None:
            reduced.keywords[keyword] = inner
        if not is_valid:
            self._lose(reduced, keyword, "contains a value that is not a schema")

    def _inner(self, value: Any, path: str, level: int) -> Subschema | bool | None:
        """Reduce an inner schema, or return a reference to it if it is too deep. None for a value that is no schema."""
        if isinstance(value, bool):
            return value
        if not isinstance(value, Mapping):
            return None
        if level >= MAX_INLINE_LEVELS and not SCHEMA_SHAPES.keys().isdisjoint(value):
            return Subschema(path, {"$ref": self._define(value, path)})
        return self.subschema(value, path, level + 1)

    def _branch(self, value: Any, path: str, level: int) -> Subschema | bool | None:
        """Reduce a branch of `oneOf`. A reference is replaced by its target if possible.

        The library must compare the branches, and it does not compare references.
        """
        if isinstance(value, Mapping) and "$ref" in value and KEYWORDS.isdisjoint(value.keys() - {"$ref"}):
            found = self._references.target(value, value["$ref"], self._lenient)
            if found is not None and isinstance(found[0], Mapping) and found[0].keys().isdisjoint(("$ref", "oneOf")):
                return self.subschema(found[0], found[1] or path, MAX_INLINE_LEVELS)
        return self._inner(value, path, level)

    def _add_reference(self, reduced: Subschema, raw: Mapping[str, Any], reference: Any) -> None:
        found = self._references.target(raw, reference, self._lenient)
        if found is None or found[0] is False:
            self._lose(reduced, "$ref", "points to no schema in this document")
        elif found[0] is not True:
            reduced.keywords["$ref"] = self._define(found[0], found[1] or reduced.path)

    def _define(self, raw: Mapping[str, Any], path: str) -> str:
        """Make a schema a definition, and return a reference to it. path: path of the schema, for losses."""
        if id(raw) not in self._names:
            self._names[id(raw)] = f"d{len(self._names)}"
            self.pending.append((raw, path, self._names[id(raw)]))
        return f"#/$defs/{self._names[id(raw)]}"

    def _lose(self, reduced: Subschema, keyword: str, reason: str) -> None:
        self.losses.append(Loss(keyword, reduced.path, reason))

    def _with_named_properties(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace `propertyNames` in a schema by `properties` or `patternProperties` if possible.

        Returns the schema unchanged if not.
        """
        if "propertyNames" not in raw:
            return raw
        names = raw["propertyNames"]
        if isinstance(names, Mapping) and "$ref" in names:
            found = self._references.target(names, names["$ref"], self._lenient)
            names = found[0] if found is not None and len(names) == 1 else names
        rest = {keyword: value for keyword, value in raw.items() if keyword != "propertyNames"}
        if accepts_all_texts(names):
            return rest
        constraints = {} if isinstance(names, bool) else text_constraints(names)
        if not {"properties", "patternProperties"}.isdisjoint(raw) or len(constraints) != 1:
            return raw
        ((keyword, value),) = constraints.items()
        values = rest.pop("additionalProperties", True)
        allowed = value if keyword == "enum" else [value]
        if (
            keyword in ("enum", "const")
            and isinstance(allowed, list)
            and all(isinstance(text, str) for text in allowed)
        ):
            return rest | {"properties": dict.fromkeys(allowed, values), "additionalProperties": False}
        if keyword == "pattern" and isinstance(value, str):
            return rest | {"patternProperties": {value: values}, "additionalProperties": False}
        return raw


def _in_latest_draft(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the keywords of a schema from older drafts to draft 2020-12, in the same order."""
    schema = dict(raw)
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and bound in schema:  # draft 4
            schema = {exclusive if keyword == bound else keyword: value for keyword, value in schema.items()}
    if isinstance(schema.get("items"), list):  # up to 2019-09
        renamed = {"items": "prefixItems", "additionalItems": "items"}
        schema = {renamed.get(keyword, keyword): value for keyword, value in schema.items()}
        if not schema["prefixItems"]:
            del schema["prefixItems"]
    if _IN_PLACE.isdisjoint(schema):
        for unevaluated, other in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
            if unevaluated in schema and other not in schema and "contains" not in schema:
                schema = {other if keyword == unevaluated else keyword: value for keyword, value in schema.items()}
    return schema
