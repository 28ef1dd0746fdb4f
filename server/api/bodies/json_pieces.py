"""JSON text of large values in pieces, so that neither the whole text nor one long call of the JSON library is needed.

The library holds Python's global lock while it writes, which stops the event loop even for calls in other threads. A
renderer therefore returns an iterator in place of a long list: its items are created and written a few at a time.
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
"""Numbers and strings that one call of the library writes. It takes about a millisecond."""
_ATOMS = frozenset({int, float, bool, type(None)})
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


def dump(value: Any) -> bytes:
    """The JSON text of a value. float32 arrays and iterators become lists."""
    return orjson.dumps(value, _fragment, _OPTIONS)


def _fragment(value: Any) -> orjson.Fragment:
    if isinstance(value, Iterator):
        return orjson.Fragment(b"".join(_list(value)))
    raise TypeError(f"{type(value).__name__} has no JSON text")


def pieces(value: Any) -> Iterator[bytes]:
    """The JSON text of a value, the same bytes as of `dump`, in pieces of about `PIECE_BYTES`."""
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
    """Number of numbers and strings in a value, iterators not read; counting ends at `limit`. Long texts count more."""
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
    """Several items of a list that are written at once."""


def small_items(items: Iterator[Any]) -> Iterator[Any]:
    """A long list of small values, such as two numbers each, whose weights need not be counted one by one."""
    while batch := list(islice(items, BATCH_WEIGHT // 4)):
        yield _Items([batch])


def _slices(numbers: Any) -> Iterator[Any]:
    return (_Items([numbers[start : start + BATCH_WEIGHT]]) for start in range(0, len(numbers), BATCH_WEIGHT))


def _list(items: Iterable[Any]) -> Iterator[bytes]:
    """The JSON text of a list whose items are read one after the other."""
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
