"""From a recording to the program that does the same: operations become words, rows places in scratch memory."""

from __future__ import annotations

import ctypes
from collections.abc import Hashable
from typing import Any

from torch import Tensor

from models.backends.cpu import library
from models.backends.cpu.program import Fill, Program, Work
from models.backends.cpu.recording import COUNT, Buffer, Count, Given, NotRecordable, Operation, Place, Rows

HEADER_WORDS = 3


def program_of(output: Rows) -> Program:
    """The program of all operations in the recording of `output`, which it returns. Raises NotRecordable."""
    if not isinstance(output.place, Place) or output.place.offset or output.stride_of_rows != output.width:
        raise NotRecordable("an output that is a part of something")
    words = _Words()
    for operation in output.recording.operations:
        words.append(operation)
    return words.program(output.place.buffer, output.width, output.count)


class _Words:
    """Operations as words."""

    def __init__(self) -> None:
        self._words: list[int] = []
        self._names: list[str] = []
        self._works: list[Work] = []
        self._rows_at: list[int] = []
        self._given: dict[Hashable, list[Fill]] = {}
        self._placed: list[tuple[int, Place]] = []
        self._constants: list[Tensor] = []

    def append(self, operation: Operation) -> None:
        record, start = operation.task(), len(self._words) + HEADER_WORDS
        self._fill(record, start, operation.fields)
        content = memoryview(bytes(record)).cast("q").tolist()
        self._words += [operation.kind, library.CODES[operation.dtype], len(content), *content]
        self._names.append(operation.name)
        self._works.append(operation.work)

    def program(self, output: Buffer, width: int, count: Count | Given) -> Program:
        """output: the buffer of what it returns. count: of its rows."""
        scratch: dict[int, list[Fill]] = {}
        offsets, size = _laid_out([place.buffer for _, place in self._placed if place.buffer is not output])
        for index, place in self._placed:
            if place.buffer is output:
                self._given.setdefault("out", []).append(Fill(index, place.offset))
            else:
                scratch.setdefault(offsets[place.buffer], []).append(Fill(index, place.offset))
        return Program(
            self._words,
            self._names,
            self._works,
            self._rows_at,
            self._given,
            scratch,
            size,
            width,
            count.name if isinstance(count, Given) else None,
            self._constants,
        )

    def _fill(self, record: ctypes.Structure, start: int, fields: dict[str, Any]) -> None:
        """Set what is known and note the rest. start: the index of the record's first word."""
        for key, value in fields.items():
            index = start + getattr(type(record), key).offset // 8
            if isinstance(value, Rows):
                value = value.place
            if isinstance(value, dict):
                self._fill(getattr(record, key), index, value)
            elif isinstance(value, Tensor):
                self._constants.append(value)
                setattr(record, key, value.data_ptr())
            elif isinstance(value, Given):
                self._given.setdefault(value.name, []).append(Fill(index, value.offset))
            elif isinstance(value, Place):
                buffer, now = value.buffer, len(self._names)
                buffer.first, buffer.last = (now if buffer.first < 0 else buffer.first), now
                self._placed.append((index, value))
            elif value is COUNT:
                self._rows_at.append(index)
            else:
                setattr(record, key, value)


def _laid_out(buffers: list[Buffer]) -> tuple[dict[Buffer, int], int]:
    """Where each buffer begins, and the size of all: those that are used at one time do not overlap."""
    starts: dict[Buffer, int] = {}
    for buffer in sorted(set(buffers), key=lambda one: (one.first, -one.row_bytes)):
        at = 0
        for other, start in sorted(starts.items(), key=lambda item: item[1]):
            together = other.first <= buffer.last and buffer.first <= other.last
            if together and at + buffer.row_bytes > start:
                at = max(at, start + other.row_bytes)
        starts[buffer] = at
    return starts, max((start + buffer.row_bytes for buffer, start in starts.items()), default=0)
