"""Write the JSON text of large values in pieces, without the whole text in memory and without one long library call.

The library holds Python's global lock while it writes, which stops the event loop even if the call is in another
thread. A renderer therefore returns an iterator in place of a long list, whose items are created and written in small
batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

import numpy as np
import orjson
from msgspec import Struct

PIECE_BYTES = 1 << 16
BATCH_WEIGHT = 2048
"""Maximum count of numbers and strings that one call of the JSON library writes, in about a millisecond."""
_ATOMS = frozenset({int, float, bool, type(None)})
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


def dump(value: Any) -> bytes:
    """The JSON text of a value. Arrays and iterators become lists. Raises TypeError for values without JSON text."""
    return orjson.dumps(value, _fragment, _OPTIONS)


def _fragment(value: Any) -> orjson.Fragment:
    if isinstance(value, Iterator):
        return orjson.Fragment(b"".join(_list(value)))
    raise TypeError(f"{type(value).__name__} has no JSON text")


def pieces(value: Any) -> Iterator[bytes]:
    """Yield the JSON text of a value in pieces of about `PIECE_BYTES`. Joined, they equal the result of `dump`."""
    held: list[bytes] = []
    size = 0
    for part in _parts(value):
        held.append(part)
        size += len(part)
        if size >= PIECE_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def weight(value: Any, limit: int) -> int:
    """Approximate count of numbers and strings in a value. A string counts 1 more for each 64 characters.

    limit: counting ends there. An iterator counts as `limit`, and is not read.
    """
    # The usual types first: the tests for abstract classes take longer than all others.
    kind = type(value)
    if kind in _ATOMS:
        return 1
    if kind is str:
        return 1 + len(value) // 64
    if isinstance(value, np.ndarray):
        return value.size
    inner: Iterable[Any]
    if kind is dict or isinstance(value, Mapping):
        inner = value.values()
    elif kind is list or isinstance(value, Sequence):
        if len(value) >= limit:
            return limit
        inner = value
    elif isinstance(value, Iterator):
        return limit
    elif isinstance(value, Struct):
        inner = (getattr(value, name) for name in value.__struct_fields__)
    elif is_dataclass(value):
        inner = (getattr(value, field.name) for field in fields(value))
    else:
        return 1
    total = 1
    for part in inner:
        if total >= limit:
            break
        total += weight(part, limit - total)
    return total


def _parts(value: Any) -> Iterator[bytes]:
    if weight(value, BATCH_WEIGHT) < BATCH_WEIGHT:
        yield dump(value)
    elif isinstance(value, dict):
        for index, (name, part) in enumerate(value.items()):
            yield (b"," if index else b"{") + orjson.dumps(name) + b":"
            yield from _parts(part)
        yield b"}"
    elif isinstance(value, np.ndarray):
        yield from _list(value if value.ndim > 1 else _slices(value))
    elif isinstance(value, Sequence | Iterator) and not isinstance(value, str):
        yield from _list(value)
    else:
        yield dump(value)


class _Items(list[Any]):
    """A list with one element: a batch of items that a single library call writes."""


def small_items(items: Iterator[Any]) -> Iterator[Any]:
    """Group many small values, such as pairs of numbers, in batches, so that `weight` is not called for each value."""
    while batch := list(islice(items, BATCH_WEIGHT // 4)):
        yield _Items([batch])


def _slices(numbers: Any) -> Iterator[Any]:
    return (_Items([numbers[start : start + BATCH_WEIGHT]]) for start in range(0, len(numbers), BATCH_WEIGHT))


def _list(items: Iterable[Any]) -> Iterator[bytes]:
    """Yield the JSON text of a list in pieces, and read its items one after the other."""
    opened = False

    def begin() -> bytes:
        nonlocal opened
        opened, mark = True, b"," if opened else b"["
        return mark

    batch: list[Any] = []
    total = 0
    for item in items:
        own = BATCH_WEIGHT if isinstance(item, _Items) else weight(item, BATCH_WEIGHT)
        if batch and total + own >= BATCH_WEIGHT:
            yield begin() + dump(batch)[1:-1]
            batch, total = [], 0
        if isinstance(item, _Items):
            yield begin() + dump(item[0])[1:-1]
        elif own >= BATCH_WEIGHT:
            yield begin()
            yield from _parts(item)
        else:
            batch.append(item)
            total += own
    if batch:
        yield begin() + dump(batch)[1:-1]
    yield b"]" if opened else b"[]"
