"""Error messages for values that a pydantic schema refuses, in terms of JSON.

pydantic's own messages are not used, because they name Python types and classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core.core_schema import ErrorType

from server.api.fields.error_places import Place, place_of

_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}|[0-9]{1,9}")
"""Pattern of a key that messages may repeat: a name, or a token id."""
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
"""pydantic's error type to a description of valid values."""
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
    "union_tag_invalid": "has an unknown {discriminator}; it must be one of {expected_tags}",
    "union_tag_not_found": "needs the field {discriminator}",
}
"""pydantic's error type to a description of the fault. Names in braces are filled in from the error's context."""
_MAX_COMPARED = 64
"""Maximum number of errors that are examined. One wrong value may cause several: one for each member of a union."""
_OF_PYDANTIC = frozenset(get_args(ErrorType))
"""Error types of pydantic itself. Other types are ours, and their messages are used unchanged."""


@dataclass(frozen=True)
class _Error:
    """An error of pydantic, and the part of the body that causes it.

    place: the location of this part in the schema.
    path: path of this part for messages.
    is_whole: whether the path leads to the part itself. Otherwise it is shortened, and leads to a value around it.
    """

    kind: str
    context: Mapping[str, Any]
    message: str
    place: Place
    path: str
    is_whole: bool


def describe_errors(body: Mapping[str, Any], errors: Sequence[Any], schema: type[BaseModel]) -> tuple[str, str | None]:
    """Describe the errors of a body. Returns a message, and the name of the first wrong field (None if unknown).

    The message names the field, but never its value.

    errors: the result of `ValidationError.errors()`, with context. schema: the schema of the body.
    """
    found = [_error(body, error, schema) for error in errors[:_MAX_COMPARED]]
    first = _in_member(found)
    kind, fields = first.kind, first.place.fields
    field = _name(fields[0]) if fields else None
    if kind in ("extra_forbidden", "missing"):
        inner, owner = _name(fields[-1]), path_in(body, fields[:-1])[0]
        if len(fields) > 1 and owner:
            has = "needs the" if kind == "missing" else "has an unknown"
            return f"`{owner}` {has} field" + (f" `{inner}`" if inner else ""), field
        if field is None:
            return "a field with an invalid name is unknown", None
        return f"the field `{field}` is required" if kind == "missing" else f"unknown field `{field}`", field
    text = _text(first, found)
    if not first.path:
        return text, field
    return f"{'' if first.is_whole else 'a value in '}`{first.path}` {text}", field


def _error(body: Mapping[str, Any], error: Any, schema: type[BaseModel]) -> _Error:
    place = place_of(schema.__pydantic_core_schema__, error["loc"])
    return _Error(error["type"], error.get("ctx", {}), error["msg"], place, *path_in(body, place.fields))


def _in_member(errors: Sequence[_Error]) -> _Error:
    """Choose the error to report: the first one, or in a union without a discriminator, the first of the best member.

    Pydantic tries all members of such a union and reports the errors of each. A member is a candidate if one of its
    errors is about a part of the value, because then the value as a whole has the member's type. The candidate with the
    fewest errors is the best member.
    """
    chosen, depth = errors[0], 0
    while depth < len(chosen.place.unions):
        at = chosen.place.unions[depth][0]
        by_member: dict[object, list[_Error]] = {}
        for error in errors:
            before = error.place.fields[:at], error.place.unions[:depth]
            if before == (chosen.place.fields[:at], chosen.place.unions[:depth]) and len(error.place.unions) > depth:
                by_member.setdefault(error.place.unions[depth], []).append(error)
        fitting = [found for found in by_member.values() if any(len(error.place.fields) > at for error in found)]
        chosen = min(fitting, key=len)[0] if fitting else chosen
        depth += 1
    return chosen


def _text(first: _Error, errors: Sequence[_Error]) -> str:
    """Describe an error, for example as `must be a string`.

    errors: all errors of the body. Several errors about the same value are joined, as in `a string or a list`.
    """
    kind, context = first.kind, first.context
    if kind == "value_error":
        return str(context["error"])
    if kind in _BOUNDS:
        numbers = {name: f"{number:g}" if isinstance(number, float) else number for name, number in context.items()}
        if "discriminator" in context:
            numbers["discriminator"] = f"`{context['discriminator'].strip(chr(39))}`"
        return _BOUNDS[kind].format_map(numbers)
    if kind in _TYPES or kind == "literal_error":
        allowed = [_allowed(error) for error in errors if error.place.fields == first.place.fields]
        return "must be " + " or ".join(dict.fromkeys(filter(None, allowed)))
    return first.message if kind not in _OF_PYDANTIC else "has an invalid value"


def _allowed(error: _Error) -> str | None:
    """Describe the valid values of a field, for an error about its type or literal value. None for other errors."""
    return str(error.context["expected"]) if error.kind == "literal_error" else _TYPES.get(error.kind)


def _name(part: object) -> str | None:
    """Return a part of an error's location if it is a field name; None for an index or one of pydantic's labels."""
    return part if isinstance(part, str) and _FIELD_NAME.fullmatch(part) else None


def path_in(body: Any, place: Sequence[int | str]) -> tuple[str, bool]:
    """Write the location of an error in the form `messages[0].role`, up to the first part that is not in the body.

    Returns the path, and whether it contains all parts of the location.
    """
    path = ""
    for part in place:
        if isinstance(body, dict) and _name(part) and part in body:
            path += f".{part}" if path else str(part)
        elif isinstance(body, list) and isinstance(part, int) and part < len(body):
            path += f"[{part}]"
        else:
            return path, False
        body = body[part]
    return path, True
