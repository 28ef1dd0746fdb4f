"""Programs: operations that are recorded once and run many times. A run is one call of the compiled library.

A program is a list of 64-bit words (`kernels/program.h`). Each run first fills in some words: row counts, inputs, and
addresses in scratch memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.backends.cpu import library
from models.backends.cpu.programs.inputs import OUT, InputValues, ProgramInput
from models.backends.cpu.programs.trace import LINE_BYTES
from models.backends.huge_pages import bytes_in_huge_pages


@dataclass(frozen=True)
class Fill:
    """A word of a program that each run sets to the value of an input, or to an address in scratch memory.

    index: index of the word. offset: number that is added to this value: the bytes from an address to a part of it.
    """

    index: int
    offset: int = 0


@dataclass(frozen=True)
class Work:
    """The smallest amount of work of an operation. Reports compute the shortest possible time from it.

    bytes: bytes of the weights that the operation reads.
    operations_per_row: number of additions and multiplications per row.
    all_rows: whether the operation computes all input rows; otherwise it computes the output rows.
    """

    bytes: int = 0
    operations_per_row: int = 0
    all_rows: bool = True


class Program:
    """A recorded list of operations that computes [rows, width] outputs, for any number of input rows.

    words: the operations as 64-bit words.
    names, works: name and work of each operation, for reports.
    row_counts: indices of words that hold the number of rows.
    inputs: for each program input, the words that hold its value.
    scratch: for each buffer in scratch memory, the words that hold its address. The key is the offset of the buffer in
        a run of one row; in a run of n rows the offset is n times as large.
    scratch_bytes: scratch memory of one row.
    width, dtype: width and dtype of the output.
    output_rows: the input with the number of output rows; None if all input rows are output rows.
    constants: tensors whose addresses are among the words.
    """

    def __init__(
        self,
        words: Sequence[int],
        names: Sequence[str],
        works: Sequence[Work],
        row_counts: Sequence[int],
        inputs: Mapping[ProgramInput, Sequence[Fill]],
        scratch: Mapping[int, Sequence[Fill]],
        scratch_bytes: int,
        width: int,
        dtype: torch.dtype,
        output_rows: ProgramInput | None,
        constants: Sequence[Tensor],
    ) -> None:
        self._words = np.array(words, dtype=np.int64)
        self._address, self._run = self._words.ctypes.data, library.loaded().triptych_run_program
        self.names, self.works, self.constants = tuple(names), tuple(works), tuple(constants)
        self._width, self._dtype, self._output_rows, self.scratch_bytes = width, dtype, output_rows, scratch_bytes
        self._row_counts = np.array(row_counts, dtype=np.int64)
        self.inputs = tuple(inputs)
        self._input_words, self._input_of, self._input_offsets = _columns(dict(enumerate(inputs.values())))
        self._scratch_words, self._scratch_of, self._scratch_offsets = _columns(scratch)
        self._values = np.zeros(len(inputs), dtype=np.int64)
        self._set_static(())
        self._layout = (0, 0)

    def run(
        self,
        rows: int,
        inputs: dict[ProgramInput, int],
        static_inputs: tuple[InputValues, ...] = (),
    ) -> Tensor:
        """Run all operations of the program on a batch of `rows` rows. Returns [rows or inputs[output_rows], width].

        inputs: addresses and numbers by input. This method adds `OUT`.
        static_inputs: further inputs, whose values are equal in most runs.
        The caller keeps the memory of all addresses alive during the call.
        Raises IndexError for a token id or position outside its table.
        """
        out = torch.empty(
            rows if self._output_rows is None else inputs[self._output_rows], self._width, dtype=self._dtype
        )
        scratch = _scratch(rows * self.scratch_bytes)
        words, values = self._words, self._values
        # Words that are equal in the previous run are not written again.
        if static_inputs != self._static_inputs:
            self._set_static(static_inputs)
        if (rows, scratch) != self._layout:
            self._layout = (rows, scratch)
            words[self._row_counts] = rows
            words[self._scratch_words] = scratch + rows * self._scratch_of + self._scratch_offsets
        inputs[OUT] = out.data_ptr()
        values[self._dynamic] = [inputs[key] for key in self._dynamic_inputs]
        words[self._input_words] = values[self._input_of] + self._input_offsets
        seconds = None if _measurement is None else _measurement.seconds_of(self, rows, out.shape[0]).ctypes.data
        if not self._run(self._address, len(self.names), seconds):
            raise IndexError("a token id or a position lies outside its table")
        return out

    def _set_static(self, static_inputs: tuple[InputValues, ...]) -> None:
        """Store the values of the static inputs, so that later runs look up only the other inputs."""
        known = {key: value for part in static_inputs for key, value in part.items()}
        dynamic = [(index, key) for index, key in enumerate(self.inputs) if key not in known]
        self._static_inputs = static_inputs
        self._dynamic = np.array([index for index, _ in dynamic], dtype=np.int64)
        self._dynamic_inputs = [key for _, key in dynamic]
        self._values[:] = [known.get(key, 0) for key in self.inputs]


class Measurement:
    """Run time of each operation of the programs that run in a `with measuring():` block."""

    def __init__(self) -> None:
        self._seconds: dict[Program, np.ndarray] = {}
        self._rows: dict[Program, list[tuple[int, int]]] = defaultdict(list)

    def seconds_of(self, program: Program, rows: int, output_rows: int) -> np.ndarray:
        """Register a run of `rows` input rows. Returns the seconds per operation so far, [operations], float64.

        The run adds its times to the returned array.
        """
        self._rows[program].append((output_rows, rows))
        return self._seconds.setdefault(program, np.zeros(len(program.names)))

    @property
    def num_operations(self) -> int:
        """Number of operations in all runs."""
        return sum(len(program.names) * len(runs) for program, runs in self._rows.items())

    def by_name(self, bytes_per_second: float, operations_per_second: float) -> dict[str, tuple[float, float]]:
        """Measured seconds, and the shortest possible seconds on a machine with these rates, by operation name.

        The shortest time of one run is the time to read the weights or the time of the arithmetic, whichever is longer.
        """
        found: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        for program, seconds in self._seconds.items():
            for name, work, value in zip(program.names, program.works, seconds.tolist(), strict=True):
                least = sum(
                    max(work.bytes / bytes_per_second, rows * work.operations_per_row / operations_per_second)
                    for rows in (counts[work.all_rows] for counts in self._rows[program])
                    if rows
                )
                found[name] = found[name][0] + value, found[name][1] + least
        return dict(found)


_measurement: Measurement | None = None


@contextmanager
def measuring() -> Iterator[Measurement]:
    """Context manager that measures each operation of every program that runs in its `with` block."""
    global _measurement
    before, _measurement = _measurement, Measurement()
    try:
        yield _measurement
    finally:
        _measurement = before


def _columns(fills: Mapping[int, Sequence[Fill]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three arrays with one element per word to set: its index, the key of its fill in `fills`, and its offset."""
    flat = [(fill.index, key, fill.offset) for key, found in fills.items() for fill in found]
    columns = np.array(flat, dtype=np.int64).reshape(-1, 3)
    return columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy()


_MAX_HUGE_BYTES = 32 << 20
"""Largest scratch memory in huge pages; larger memory is in small pages. A huge page takes memory from its first write
on, and a step does not write all of the scratch memory: with huge pages the worker of a LLaMA of 1.07B needs 4 MB
more."""

_memory: Tensor = torch.empty(0, dtype=torch.uint8)


def _scratch(size: int) -> int:
    """Address of `size` bytes, aligned to a cache line.

    All programs share this memory, because only one runs at a time.
    """
    global _memory
    if _memory.nbytes < size + LINE_BYTES:
        _memory = torch.empty(0, dtype=torch.uint8)  # gives the old memory back before the new is taken
        size += LINE_BYTES
        is_huge = size <= _MAX_HUGE_BYTES
        _memory = bytes_in_huge_pages(size) if is_huge else torch.empty(size, dtype=torch.uint8)
    return -(-_memory.data_ptr() // LINE_BYTES) * LINE_BYTES
