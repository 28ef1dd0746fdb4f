"""Tables of the keywords of JSON Schema: keywords that a grammar enforces, and keywords that are lost.

Keywords in no table, and formats that the library does not know, are annotations: they have no effect, as JSON Schema
prescribes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

MAX_COUNT = 1 << 53
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= MAX_COUNT and value == int(value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def is_format(value: Any) -> bool:
    return isinstance(value, str) and value in FORMATS


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


VALUES: Mapping[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "enum": lambda value: isinstance(value, list) and bool(value),
    "const": lambda value: True,
    "minLength": is_count,
    "maxLength": is_count,
    "pattern": _is_text,
    "minimum": _is_number,
    "maximum": _is_number,
    "exclusiveMinimum": _is_number,
    "exclusiveMaximum": _is_number,
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "minItems": is_count,
    "maxItems": is_count,
    "minProperties": is_count,
    "maxProperties": is_count,
    "required": _are_names,
}
"""For each enforced keyword with a plain value: a function that tells whether a value is usable."""
SCHEMA_SHAPES: Mapping[str, str] = {
    "properties": "map",
    "patternProperties": "map",
    "additionalProperties": "one",
    "prefixItems": "list",
    "items": "one",
    "allOf": "list",
    "anyOf": "list",
    "oneOf": "list",
}
"""For each enforced keyword with subschemas: the form of its value, a map of names, a list, or one subschema."""


def _is_anything(schema: Any) -> bool:
    """Whether a schema obviously accepts every value."""
    return schema is True or (isinstance(schema, Mapping) and KEYWORDS.isdisjoint(schema))


def _has_entries(value: Any, raw: Mapping[str, Any]) -> bool:
    return not isinstance(value, Mapping) or not all(entry == [] or _is_anything(entry) for entry in value.values())


def _always(value: Any, raw: Mapping[str, Any]) -> bool:
    return True


UNENFORCED: Mapping[str, Callable[[Any, Mapping[str, Any]], bool]] = {
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
"""For each keyword that is not enforced: a function that tells whether its value restricts anything.

The arguments of the function are the value, and the subschema that contains the keyword."""
KEYWORDS = frozenset({*VALUES, *SCHEMA_SHAPES, *UNENFORCED, "$ref", "format"})
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


def text_constraints(schema: Any) -> dict[str, Any]:
    """The keywords of a schema that may exclude some strings, with their values."""
    if not isinstance(schema, Mapping):
        return {}
    types = schema.get("type")
    is_text = types == "string" or (isinstance(types, list) and "string" in types)
    without_effect = {*_OF_OTHER_TYPES, *(("type",) if is_text else ())}
    found = {keyword: value for keyword, value in schema.items() if keyword in KEYWORDS - without_effect}
    if found.get("minLength") == 0:
        del found["minLength"]
    if found.get("pattern") in ("", ".*"):
        del found["pattern"]
    if not is_format(found.get("format")):
        found.pop("format", None)
    return found


def accepts_all_texts(schema: Any) -> bool:
    """Whether a schema obviously accepts every string."""
    if not isinstance(schema, Mapping):
        return schema is True
    constraints = text_constraints(schema)
    choices = constraints.pop("anyOf", [True])
    return not constraints and isinstance(choices, list) and any(map(accepts_all_texts, choices))
