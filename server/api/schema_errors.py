"""Messages about values that a schema refuses. pydantic's own messages name Python types and classes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_TYPES: Mapping[str, str] = {
    "string_type": "a string",
    "string_unicode": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "null",
    "finite_number": "a finite number",
}
"""By type of the error: description of valid values."""
_BOUNDS: Mapping[str, str] = {
    "int_parsing_size": "is a number with too many digits",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "has characters that are not allowed here",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "literal_error": "must be {expected}",
    "union_tag_invalid": "has an unknown `type`; it must be one of {expected_tags}",
    "union_tag_not_found": "needs the field `type`",
}
"""By type of the error: description of the fault. The braces name values of pydantic's context."""


def describe_errors(body: Mapping[str, Any], errors: Sequence[Any]) -> tuple[str, str | None]:
    """(message, field) for the errors of a body. The message names the first field at fault, but not its value.

    errors: `ValidationError.errors()` with their context.
    """
    first = errors[0]
    kind, place = first["type"], first["loc"]
    field = _name(place[0]) if place else None
    if kind in ("extra_forbidden", "missing"):
        inner, owner = _name(place[-1]), _path(body, place[:-1])
        if len(place) > 1 and owner:
            has = "needs the" if kind == "missing" else "has an unknown"
            return f"`{owner}` {has} field" + (f" `{inner}`" if inner else ""), field
        if field is None:
            return "a field with an invalid name is unknown", None
        return f"the field `{field}` is required" if kind == "missing" else f"unknown field `{field}`", field
    path = _path(body, place)
    text = _text(body, errors)
    return f"`{path}` {text}" if path else text, field


def _text(body: Mapping[str, Any], errors: Sequence[Any]) -> str:
    """Description of the first error, such as `must be a string`."""
    first = errors[0]
    kind, context = first["type"], first.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind in _BOUNDS:
        numbers = {name: f"{one:g}" if isinstance(one, float) else one for name, one in context.items()}
        return _BOUNDS[kind].format_map(numbers)
    if kind not in _TYPES:
        return "has an invalid value"
    path = _path(body, first["loc"])
    branches = [one for one in errors if one["type"] in _TYPES and _path(body, one["loc"]) == path]
    return "must be " + " or ".join(dict.fromkeys(_TYPES[one["type"]] for one in branches))


def _name(part: object) -> str | None:
    """The field that a part of an error's location names; None for an index or a name of pydantic's own."""
    return part if isinstance(part, str) and _FIELD_NAME.fullmatch(part) else None


def _path(body: Any, place: Sequence[int | str]) -> str:
    """The location of an error in the form `messages[0].role`. Parts that are no keys of the body are left out."""
    path = ""
    for part in place:
        if isinstance(body, dict) and _name(part) and part in body:
            path += f".{part}" if path else str(part)
            body = body[part]
        elif isinstance(body, list) and isinstance(part, int) and part < len(body):
            path += f"[{part}]"
            body = body[part]
    return path
