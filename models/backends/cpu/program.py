"""Operations that were recorded once and are run again and again, all of them in one call of the compiled library.

A program knows addresses and sizes, no tensors. It is a list of 64-bit words (`kernels/program.h`); some of them are
filled in before each run: the number of rows, addresses that a step brings, and addresses in the scratch memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.backends.cpu import library

LINE_BYTES = 64
"""Scratch buffers begin where a cache line does."""


@dataclass(frozen=True)
class Fill:
    """A word that is filled in before a run. index: its place among the words. offset: in bytes, added."""

    index: int
    offset: int = 0


@dataclass(frozen=True)
class Work:
    """What an operation cannot do without. bytes: of weights that it reads. operations_of_row: sums and products.
    all_rows: its rows are those that the program is given, else those that it returns."""

    bytes: int = 0
    operations_of_row: int = 0
    all_rows: bool = True


class Program:
    """One number of `rows` in, the same number of rows out, or a part of them.

    words: of all operations. names: what each is called. works: what each has to do.
    rows_at: words that are the number of rows.
    given: words that a step brings, by name.
    scratch: words that are addresses of scratch memory, by where their buffer begins for a single row: a buffer of
    `rows` rows begins `rows` times as far. scratch_bytes: of a single row. width: of the output.
    count: the name of how many rows come out, where that is not how many go in; no more than these.
    constants: tensors whose addresses are in it.
    """

    def __init__(
        self,
        words: Sequence[int],
        names: Sequence[str],
        works: Sequence[Work],
        rows_at: Sequence[int],
        given: Mapping[Hashable, Sequence[Fill]],
        scratch: Mapping[int, Sequence[Fill]],
        scratch_bytes: int,
        width: int,
        count: Hashable | None,
        constants: Sequence[Tensor],
    ) -> None:
        self._words = np.array(words, dtype=np.int64)
        self._address = self._words.ctypes.data
        self.names, self.works, self.constants = tuple(names), tuple(works), tuple(constants)
        self._width, self._count, self.scratch_bytes = width, count, scratch_bytes
        self._rows_at = np.array(rows_at, dtype=np.int64)
        self.given = tuple(given)
        self.kinds: tuple[Any, ...] = tuple(
            {name[0] for name in given if isinstance(name, tuple) and isinstance(name[0], tuple)}
        )
        self._given_at, self._given_of, self._given_offsets = _columns(dict(enumerate(given.values())))
        self._scratch_at, self._scratch_of, self._scratch_offsets = _columns(scratch)
        self._values = np.zeros(len(given), dtype=np.int64)
        self._keep(())
        self._laid_out = (0, 0)

    def run(self, x: Tensor, given: Mapping[Hashable, int], kept: tuple[Mapping[Hashable, int], ...] = ()) -> Tensor:
        """x: [rows, width], contiguous. given: addresses and numbers of this step; kept: those that the next steps will
        most likely bring as well. -> [rows or `count`, width], of the same dtype.

        What the addresses are of has to live until this returns.
        """
        rows = x.shape[0]
        assert x.is_contiguous()
        out = torch.empty(rows if self._count is None else given[self._count], self._width, dtype=x.dtype)
        room = _scratch(rows * self.scratch_bytes)
        words, values = self._words, self._values
        # What stays the same from step to step is in its place already.
        if kept != self._kept:
            self._keep(kept)
        if (rows, room) != self._laid_out:
            self._laid_out = (rows, room)
            words[self._rows_at] = rows
            words[self._scratch_at] = room + rows * self._scratch_of + self._scratch_offsets
        here = {**given, "x": x.data_ptr(), "out": out.data_ptr()}
        values[self._brought_at] = [here[name] for name in self._brought]
        words[self._given_at] = values[self._given_of] + self._given_offsets
        seconds = _watch.seconds_of(self, rows, out.shape[0]) if _watch is not None else None
        library.loaded().triptych_run(self._address, len(self.names), None if seconds is None else seconds.ctypes.data)
        return out

    def _keep(self, kept: tuple[Mapping[Hashable, int], ...]) -> None:
        """Set these values for good; only those of other names are looked for in what a step brings."""
        self._kept, known = kept, {name: value for part in kept for name, value in part.items()}
        brought = [(index, name) for index, name in enumerate(self.given) if name not in known]
        self._brought_at = np.array([index for index, _ in brought], dtype=np.int64)
        self._brought = [name for _, name in brought]
        self._values[:] = [known.get(name, 0) for name in self.given]


class Watch:
    """What the operations of all programs took, while `watching`."""

    def __init__(self) -> None:
        self._seconds: dict[Program, np.ndarray] = {}
        self._rows: dict[Program, list[tuple[int, int]]] = defaultdict(list)

    def seconds_of(self, program: Program, rows: int, rows_out: int) -> np.ndarray:
        """[operations], float64, summed over the runs so far; for a run of so many rows to be added."""
        self._rows[program].append((rows_out, rows))
        return self._seconds.setdefault(program, np.zeros(len(program.names)))

    def by_name(self, bytes_per_second: float, operations_per_second: float) -> dict[str, tuple[float, float]]:
        """By what operations are called: seconds, and the least that the machine would need for their weights and
        products, each time the longer of the two."""
        found: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        for program, seconds in self._seconds.items():
            for name, work, value in zip(program.names, program.works, seconds.tolist(), strict=True):
                least = sum(
                    max(work.bytes / bytes_per_second, rows * work.operations_of_row / operations_per_second)
                    for rows in (counts[work.all_rows] for counts in self._rows[program])
                    if rows
                )
                found[name] = found[name][0] + value, found[name][1] + least
        return dict(found)


_watch: Watch | None = None


@contextmanager
def watching() -> Iterator[Watch]:
    """Measure every operation of every program that runs meanwhile."""
    global _watch
    before, _watch = _watch, Watch()
    try:
        yield _watch
    finally:
        _watch = before


def _columns(fills: Mapping[int, Sequence[Fill]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Index of each word, the key it is filled by, and what is added."""
    flat = [(fill.index, key, fill.offset) for key, found in fills.items() for fill in found]
    columns = np.array(flat, dtype=np.int64).reshape(-1, 3)
    return columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy()


_room: Tensor = torch.empty(0, dtype=torch.uint8)


def _scratch(size: int) -> int:
    """The address of so many bytes, the same ones for every program: a worker runs one at a time."""
    global _room
    if _room.nbytes < size + LINE_BYTES:
        _room = torch.empty(size + LINE_BYTES, dtype=torch.uint8)
    return -(-_room.data_ptr() // LINE_BYTES) * LINE_BYTES
