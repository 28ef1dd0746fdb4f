"""Sequences whose items are computed when they are read, so that a large result never exists as Python objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import eq
from typing import TypeVar, overload

Item = TypeVar("Item", covariant=True)


class Computed(Sequence[Item]):
    """A sequence of `length` items that are computed when they are read. Equal to a `Computed` with equal items.

    item: computes the item at an index, which is never negative.
    """

    def __init__(self, length: int, item: Callable[[int], Item]) -> None:
        self._length = length
        self._item = item

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self._item(place) for place in range(self._length)[index]]
        return self._item(range(self._length)[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Computed) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]
