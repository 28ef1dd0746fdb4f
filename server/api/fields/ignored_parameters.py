"""Names of parameters that a request has sent and the server has dropped, for the header `X-Ignored-Parameters`.

The server drops a wish: a field that it does not support and without which the answer is still valid. The names consist
of field names in this server's schemas and of indices. They never contain other text of the client.
See docs/decisions/0117-three-kinds-of-fields.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel

from server.api.fields.field_kinds import Wish

HEADER = "X-Ignored-Parameters"
MAX_HEADER_BYTES = 1024
"""Maximum size of the list of names. Further names are only counted, as in `, +3 more`."""


def ignored_parameters(body: BaseModel) -> list[str]:
    """Paths of the wishes in a body that have a value with a meaning, such as `messages[3].reasoning_details`.

    Objects inside the body are searched too. If an object has a method `dropped()`, this returns further paths relative
    to the object, such as those of built-in tools. Dictionaries are not searched, because their keys are text of the
    client.
    """
    return list(_of_object(body, ""))


def header_value(names: Sequence[str]) -> str:
    """The value of the header: each name once. If not all names fit, the count of the remaining names follows."""
    unique = list(dict.fromkeys(names))
    room = MAX_HEADER_BYTES
    for index, name in enumerate(unique):
        room -= len(name) + 2 * (index > 0)
        if room < 0:
            return f"{', '.join(unique[:index])}, +{len(unique) - index} more"
    return ", ".join(unique)


@cache
def _fields(schema: type[BaseModel]) -> tuple[tuple[str, str, Wish | None], ...]:
    """The fields of a schema, as triples: attribute, name in JSON, and its mark if it is a wish, otherwise None."""
    return tuple(
        (name, field.alias or name, next((mark for mark in field.metadata if isinstance(mark, Wish)), None))
        for name, field in schema.model_fields.items()
    )


@cache
def _reports_dropped(schema: type[BaseModel]) -> bool:
    """Whether the objects of a schema have a method `dropped()`. Asking each object takes longer, as most have none."""
    return hasattr(schema, "dropped")


def _of_object(value: BaseModel, place: str) -> Iterator[str]:
    for attribute, name, wish in _fields(type(value)):
        inner = getattr(value, attribute)
        if inner is None:
            continue
        path = f"{place}.{name}" if place else name
        if wish is not None:
            if not wish.is_neutral(inner):
                yield path
        else:
            yield from _of_value(inner, path)
    if _reports_dropped(type(value)):
        yield from (f"{place}.{name}" if place else name for name in value.dropped())  # type: ignore[attr-defined]


def _of_value(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from _of_object(value, place)
    elif isinstance(value, list) and value and isinstance(value[0], BaseModel | list):
        for index, item in enumerate(value):
            yield from _of_value(item, f"{place}[{index}]")
