"""Log-probabilities of tokens in packed form: 8 bytes for each, in messages and in the memory of the HTTP process.

As Python objects, the 20 alternatives of each token of a long prompt would take 30 times the memory, and decoding them
from a message would stop the event loop for a while.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import msgspec


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token under the raw distribution, before temperature, penalties and masks.

    top: the likeliest tokens with their log-probabilities.
    """

    token_id: int
    logprob: float
    top: list[tuple[int, float]] = []


class PackedLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of several tokens in a message.

    width: number of log-probabilities for each token: that of the token itself, and those of the likeliest tokens.
    token_ids: int32, little-endian, [tokens, width].
    values: float32, little-endian, [tokens, width].
    """

    width: int
    token_ids: bytes
    values: bytes

    def __len__(self) -> int:
        return len(self.token_ids) // (4 * self.width)

    def __iter__(self) -> Iterator[TokenLogprob]:
        return iter(Logprobs(self))


class Logprobs(Sequence[TokenLogprob]):
    """A growing list of log-probabilities. All entries have the same number of likeliest tokens."""

    def __init__(self, entries: Iterable[TokenLogprob] | PackedLogprobs = ()) -> None:
        self._width = 1
        self._token_ids = array("i")
        self._values = array("f")
        self.extend(entries)

    def extend(self, entries: Iterable[TokenLogprob] | PackedLogprobs) -> None:
        """Add entries at the end. They must have as many likeliest tokens as the present entries."""
        if isinstance(entries, PackedLogprobs):
            token_ids, values = array("i", entries.token_ids), array("f", entries.values)
            if sys.byteorder == "big":
                token_ids.byteswap()
                values.byteswap()
            self._add(entries.width, token_ids, values)
        elif isinstance(entries, Logprobs):
            self._add(entries._width, entries._token_ids, entries._values)
        else:
            for entry in entries:
                own_ids = array("i", [entry.token_id, *(token_id for token_id, _ in entry.top)])
                self._add(len(own_ids), own_ids, array("f", [entry.logprob, *(value for _, value in entry.top)]))

    def _add(self, width: int, token_ids: array[int], values: array[float]) -> None:
        if token_ids:
            assert not self._token_ids or width == self._width, "all entries have the same number of likeliest tokens"
            self._width = width
            self._token_ids += token_ids
            self._values += values

    def packed(self) -> PackedLogprobs:
        """All entries as packed bytes for a message."""
        return PackedLogprobs(self._width, _little_endian(self._token_ids), _little_endian(self._values))

    @property
    def num_values(self) -> int:
        """Number of stored log-probabilities, including those of the likeliest tokens."""
        return len(self._values)

    def own(self) -> Sequence[float]:
        """The log-probability of each token itself, without those of the likeliest tokens."""
        return self._values[:: self._width]

    def __len__(self) -> int:
        return len(self._token_ids) // self._width

    @overload
    def __getitem__(self, index: int) -> TokenLogprob: ...
    @overload
    def __getitem__(self, index: slice) -> Logprobs: ...

    def __getitem__(self, index: int | slice) -> TokenLogprob | Logprobs:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            assert step == 1, "a slice has consecutive entries"
            part = Logprobs()
            numbers = slice(start * self._width, max(start, stop) * self._width)
            part._add(self._width, self._token_ids[numbers], self._values[numbers])
            return part
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        start = (index % len(self)) * self._width
        numbers = slice(start, start + self._width)
        ids, values = self._token_ids[numbers], self._values[numbers]
        return TokenLogprob(ids[0], values[0], list(zip(ids[1:], values[1:], strict=True)))

    def __iter__(self) -> Iterator[TokenLogprob]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Logprobs) and self.packed() == other.packed()

    __hash__ = None  # type: ignore[assignment]


def pack(entries: Iterable[TokenLogprob]) -> PackedLogprobs:
    """Convert log-probabilities to packed bytes for a message."""
    return Logprobs(entries).packed()


def _little_endian(numbers: array[int] | array[float]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()
