"""Reduce a JSON Schema to the part that a grammar can enforce, and list the keywords that are lost.

The reduced schema accepts every value that the schema accepts, and further values if keywords were lost. Keywords that
are in no table of this file, and formats that the library does not know, are annotations: they have no effect, as JSON
Schema prescribes. Older drafts are translated to 2020-12. Only references within the schema are followed.
See docs/decisions/0118-schemas-that-are-not-strict.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from server.operations.schemas.schema_references import References

MAX_INLINE_LEVELS = 24
"""Subschemas at a deeper level become definitions, because the library reads at most 128 levels of JSON."""
MAX_COUNT = 1 << 53
MAX_PATH_CHARACTERS = 200
MAX_TEXT_LENGTH = 2048
"""Maximum enforced `minLength` and `maxLength`, unless the schema is strict.

Each character of such a text needs about 9 states of a grammar, and a grammar with more than 32,768 states fails.
"""
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_IN_PLACE = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "not", "$dynamicRef"})
"""Keywords that apply further schemas to the same value. The meaning of `unevaluated...` depends on them."""


_NAME = re.compile(r"\$?[A-Za-z0-9_-]{1,64}")
"""Pattern of a name that errors may repeat. Other names may contain any text of the client."""


@dataclass(frozen=True)
class Loss:
    """A keyword that is not enforced.

    path: path of its subschema in the client's schema, for example `properties.place`; empty for the root.
    reason: end of a sentence that begins with the keyword.
    """

    keyword: str
    path: str
    reason: str

    def __str__(self) -> str:
        """Description of the loss, as the end of a sentence that begins with the name of the request's field."""
        parts = ".".join(filter(None, (self.path, self.keyword))).split(".")
        place = ".".join(part if _NAME.fullmatch(part) else "..." for part in parts if part)
        return f"cannot be enforced: `{place[:MAX_PATH_CHARACTERS]}` {self.reason}" if place else self.reason


@dataclass
class Subschema:
    """A reduced subschema that can still be changed.

    path: path of the subschema in the client's schema.
    keywords: the enforced keywords with their values, in the client's order. Inner schemas are `Subschema` or booleans.
    """

    path: str
    keywords: dict[str, Any] = field(default_factory=dict)

    def inner(self) -> Iterator[Subschema]:
        """Yield the subschemas directly inside of this one, without the target of `$ref`."""
        for value in self.keywords.values():
            members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
            yield from (member for member in members if isinstance(member, Subschema))

    def as_json(self) -> dict[str, Any]:
        return {keyword: _as_json(value) for keyword, value in self.keywords.items()}


@dataclass
class ReducedSchema:
    """A schema with only the keywords that can be enforced.

    definitions: name to the subschema that the reference `#/$defs/name` means.
    losses: the keywords that were left out.
    """

    root: Subschema
    definitions: dict[str, Subschema]
    losses: list[Loss]

    def target(self, schema: Subschema) -> Subschema | None:
        """The definition that the `$ref` of a subschema means, or None if it has no `$ref`."""
        return self.definitions.get(schema.keywords.get("$ref", "").removeprefix("#/$defs/"))


def reduce_schema(schema: Mapping[str, Any], lenient: bool) -> ReducedSchema:
    """Reduce a schema to the part that can be enforced.

    lenient: leave out lengths of texts above `MAX_TEXT_LENGTH`, and follow references that lack their `#`.
    """
    reducer = _Reducer(schema, lenient)
    root = reducer.subschema(schema, "")
    for raw, path, name in reducer.pending:  # grows meanwhile
        reducer.definitions[name] = reducer.subschema(raw, path)
    reduced = ReducedSchema(root, reducer.definitions, reducer.losses)
    _cut_endless_references(reduced)
    return reduced


class _Reducer:
    """Reduces one schema to the part that can be enforced. root: the whole schema.

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
        if keyword in _UNENFORCED:
            if _UNENFORCED[keyword](value, raw):
                self._lose(reduced, keyword, "cannot be enforced")
        elif keyword == "$ref":
            self._add_reference(reduced, raw, value)
        elif keyword == "format":
            if _is_format(value):
                reduced.keywords[keyword] = value
        elif keyword in _VALUES:
            if not _VALUES[keyword](value):
                self._lose(reduced, keyword, "has a value that is not valid or too large")
            elif self._lenient and keyword in ("minLength", "maxLength") and value > MAX_TEXT_LENGTH:
                self._lose(reduced, keyword, "is too large to be enforced")
            else:
                # JSON Schema counts 3.0 as an integer. The library does not.
                reduced.keywords[keyword] = int(value) if _VALUES[keyword] is _is_count else value
        elif keyword in _SCHEMA_SHAPES:
            self._add_subschemas(reduced, keyword, value, level)

    def _add_subschemas(self, reduced: Subschema, keyword: str, value: Any, level: int) -> None:
        path = f"{reduced.path}.{keyword}" if reduced.path else keyword
        inner: Any
        if _SCHEMA_SHAPES[keyword] == "map" and isinstance(value, Mapping):
            inner = {name: self._inner(subschema, f"{path}.{name}", level) for name, subschema in value.items()}
            is_valid = None not in inner.values()
            inner = {name: True if subschema is None else subschema for name, subschema in inner.items()}
        elif _SCHEMA_SHAPES[keyword] == "list" and isinstance(value, list) and value:
            read = self._branch if keyword == "oneOf" else self._inner
            inner = [read(subschema, f"{path}.{index}", level) for index, subschema in enumerate(value)]
            is_valid = None not in inner
            inner = [True if subschema is None else subschema for subschema in inner]
        else:
            inner = self._inner(value, path, level) if _SCHEMA_SHAPES[keyword] == "one" else None
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
        if level >= MAX_INLINE_LEVELS and not _SCHEMA_SHAPES.keys().isdisjoint(value):
            return Subschema(path, {"$ref": self._define(value, path)})
        return self.subschema(value, path, level + 1)

    def _branch(self, value: Any, path: str, level: int) -> Subschema | bool | None:
        """Reduce a branch of `oneOf`. A reference is replaced by its target if possible.

        The library must compare the branches, and it does not compare references.
        """
        if isinstance(value, Mapping) and "$ref" in value and _KEYWORDS.isdisjoint(value.keys() - {"$ref"}):
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
        if _accepts_all_texts(names):
            return rest
        constraints = {} if isinstance(names, bool) else _text_constraints(names)
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


def _as_json(value: Any) -> Any:
    if isinstance(value, Subschema):
        return value.as_json()
    if isinstance(value, dict):
        return {key: _as_json(part) for key, part in value.items()}
    return [_as_json(part) for part in value] if isinstance(value, list) else value


# ------------------------------------------------------------------------------------------------------ tables


def _is_count(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= MAX_COUNT and value == int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _is_format(value: Any) -> bool:
    return isinstance(value, str) and value in FORMATS


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_VALUES: Mapping[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "enum": lambda value: isinstance(value, list) and bool(value),
    "const": lambda value: True,
    "minLength": _is_count,
    "maxLength": _is_count,
    "pattern": _is_text,
    "minimum": _is_number,
    "maximum": _is_number,
    "exclusiveMinimum": _is_number,
    "exclusiveMaximum": _is_number,
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "minItems": _is_count,
    "maxItems": _is_count,
    "minProperties": _is_count,
    "maxProperties": _is_count,
    "required": _are_names,
}
"""Enforced keyword with a value to a function that tells whether a value is usable."""

_SCHEMA_SHAPES: Mapping[str, str] = {
    "properties": "map",
    "patternProperties": "map",
    "additionalProperties": "one",
    "prefixItems": "list",
    "items": "one",
    "allOf": "list",
    "anyOf": "list",
    "oneOf": "list",
}
"""Enforced keyword with subschemas to the form of its value: a map of names, a list, or one subschema."""


def _is_anything(schema: Any) -> bool:
    """Whether a schema obviously accepts every value."""
    return schema is True or (isinstance(schema, Mapping) and _KEYWORDS.isdisjoint(schema))


def _text_constraints(schema: Any) -> dict[str, Any]:
    """The keywords of a schema that may exclude some strings, with their values."""
    if not isinstance(schema, Mapping):
        return {}
    types = schema.get("type")
    is_text = types == "string" or (isinstance(types, list) and "string" in types)
    without_effect = {*_OF_OTHER_TYPES, *(("type",) if is_text else ())}
    found = {keyword: value for keyword, value in schema.items() if keyword in _KEYWORDS - without_effect}
    if found.get("minLength") == 0:
        del found["minLength"]
    if found.get("pattern") in ("", ".*"):
        del found["pattern"]
    if not _is_format(found.get("format")):
        found.pop("format", None)
    return found


def _accepts_all_texts(schema: Any) -> bool:
    """Whether a schema obviously accepts every string."""
    if not isinstance(schema, Mapping):
        return schema is True
    constraints = _text_constraints(schema)
    choices = constraints.pop("anyOf", [True])
    return not constraints and isinstance(choices, list) and any(map(_accepts_all_texts, choices))


def _has_entries(value: Any, raw: Mapping[str, Any]) -> bool:
    return not isinstance(value, Mapping) or not all(entry == [] or _is_anything(entry) for entry in value.values())


def _always(value: Any, raw: Mapping[str, Any]) -> bool:
    return True


_UNENFORCED: Mapping[str, Callable[[Any, Mapping[str, Any]], bool]] = {
    "not": lambda value, raw: value is not False,
    "if": lambda value, raw: not all(_is_anything(raw.get(branch, True)) for branch in ("then", "else")),
    "then": lambda value, raw: "if" in raw and not _is_anything(value),
    "else": lambda value, raw: "if" in raw and not _is_anything(value),
    "dependentRequired": _has_entries,
    "dependentSchemas": _has_entries,
    "dependencies": _has_entries,
    "propertyNames": lambda value, raw: not _is_anything(value),
    "uniqueItems": lambda value, raw: value is not False,
    "contains": lambda value, raw: raw.get("minContains") != 0 or "maxContains" in raw,
    "minContains": lambda value, raw: "contains" in raw and value != 0,
    "maxContains": lambda value, raw: "contains" in raw,
    "unevaluatedProperties": lambda value, raw: not _is_anything(value) and "additionalProperties" not in raw,
    "unevaluatedItems": lambda value, raw: not _is_anything(value) and "items" not in raw,
    "$dynamicRef": _always,
    "$recursiveRef": _always,
}
"""Keyword that is not enforced to a function that tells whether its value restricts anything.

The arguments of the function are the value, and the subschema that contains the keyword."""

_OF_OTHER_TYPES = frozenset(
    {
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"),
        *("properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"),
        *("propertyNames", "dependentRequired", "dependentSchemas", "dependencies"),
        *("unevaluatedItems", "unevaluatedProperties"),
    }
)
"""Keywords that restrict only values other than strings."""
_KEYWORDS = frozenset({*_VALUES, *_SCHEMA_SHAPES, *_UNENFORCED, "$ref", "format"})


# ------------------------------------------------------------------------------------------- endless references


def _cut_endless_references(reduced: ReducedSchema) -> None:
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
