"""Messages about values that a schema refuses, in the terms of JSON.

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
"""A key that messages may repeat: a name, or a token id."""
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
    "union_tag_invalid": "has an unknown {discriminator}; it must be one of {expected_tags}",
    "union_tag_not_found": "needs the field {discriminator}",
}
"""By type of the error: description of the fault. The braces name values of pydantic's context."""
_MAX_COMPARED = 64
"""Number of errors that are searched for those of the same value. The members of a union give a few of them."""
_OF_PYDANTIC = frozenset(get_args(ErrorType))
"""Types of the errors of pydantic itself. Others are ours, and so are their messages."""


@dataclass(frozen=True)
class _Error:
    """An error of pydantic, and the part of the body that it is about.

    place: this part. path: the path of this part in error messages.
    is_whole: whether the path names the part itself. If false, the path is cut and names a part that contains it.
    """

    kind: str
    context: Mapping[str, Any]
    message: str
    place: Place
    path: str
    is_whole: bool


def describe_errors(body: Mapping[str, Any], errors: Sequence[Any], schema: type[BaseModel]) -> tuple[str, str | None]:
    """(message, field) for the errors of a body. The message names the first field at fault, but not its value.

    errors: `ValidationError.errors()` with their context. schema: the schema of the body.
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
    """Choose the error to report: the first one, or for a union without a discriminator, the first of the best member.

    Pydantic tries all members of such a union and reports the errors of each. A member is a candidate if one of its
    errors is about a part of the value, because then the value as a whole has the type of the member. The candidate
    with the fewest errors is the best member.
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
    """Description of an error, such as `must be a string`. errors: all of them, also those of other members."""
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
    """The values that a field may have by an error about its type or its value; None for other errors."""
    return str(error.context["expected"]) if error.kind == "literal_error" else _TYPES.get(error.kind)


def _name(part: object) -> str | None:
    """The field that a part of an error's location names; None for an index or a name of pydantic's own."""
    return part if isinstance(part, str) and _FIELD_NAME.fullmatch(part) else None


def path_in(body: Any, place: Sequence[int | str]) -> tuple[str, bool]:
    """The location of an error in the form `messages[0].role`, as far as it is in the body and has names.

    Returns the path, and whether it has all parts of the location.
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
