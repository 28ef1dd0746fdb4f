"""Operations on rows that are not there yet: what a model does is written down, to be run as a program.

A model is called once with `Rows` in place of tensors; each operation (`recorded_ops`) notes itself in the `Recording`
that the rows belong to. What has no record raises `NotRecordable`, and the model is computed operation by operation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch

from models.backends.cpu import library
from models.backends.cpu.library import Kind
from models.backends.cpu.program import LINE_BYTES, Work


class NotRecordable(Exception):
    """The model does something that no program can do."""


class Count:
    """The number of rows, which nobody knows while recording."""


COUNT = Count()


@dataclass(eq=False)
class Buffer:
    """Scratch memory of a program. row_bytes: of one row. first, last: operations that use it."""

    row_bytes: int
    first: int = -1
    last: int = -1


@dataclass(frozen=True)
class Given:
    """Something that a step brings: the address of a tensor, or a number. offset: in bytes."""

    name: Hashable
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Angles(Given):
    """A table of sines or cosines, [positions, half], float32. positions: the address of those of a step's tokens, or 0
    where the table has one row for each of them."""

    positions: Given
    half: int


@dataclass(frozen=True, kw_only=True)
class Chosen(Given):
    """Indices of rows. count: how many."""

    count: Given


@dataclass(frozen=True)
class Cache(Given):
    """Keys or values of a layer in their blocks."""

    kv_heads: int = 0


@dataclass(frozen=True)
class Sight:
    """In place of an `AttentionPlan`. kind: which of a step's plans. bias: the name of the address of its scores' bias,
    or None."""

    kind: Hashable
    bias: Hashable | None

    def given(self, what: str) -> Given:
        return Given((self.kind, what))


@dataclass(frozen=True)
class Place:
    """An address in scratch memory. offset: in bytes, in the first row."""

    buffer: Buffer
    offset: int = 0


@dataclass
class Operation:
    """dtype: that it works in. name: for people. fields: of the struct, numbers, tensors (constants), `Rows`, `Given`,
    COUNT, None, or a dictionary of such for a struct within the struct. out: what it writes, if that is one thing."""

    kind: Kind
    dtype: torch.dtype
    name: str
    task: type[ctypes.Structure]
    fields: dict[str, Any]
    out: Rows | None = None
    work: Work = field(default_factory=Work)


@dataclass(frozen=True, eq=False)
class Rows:
    """In place of a tensor [rows, ...].

    shape_of_row: the other dimensions, contiguous. stride_of_rows: numbers from one row to the next. count: how many
    rows, all or some of them.
    """

    recording: Recording
    place: Place | Given
    dtype: torch.dtype
    shape_of_row: tuple[int, ...]
    stride_of_rows: int
    count: Count | Given = COUNT

    @property
    def shape(self) -> tuple[Any, ...]:
        return (self.count, *self.shape_of_row)

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return prod(self.shape_of_row)

    def view(self, rows: object, *shape: int) -> Rows:
        if rows is not self.count:
            raise NotRecordable("a view of other rows")
        known = prod(size for size in shape if size != -1)
        return replace(self, shape_of_row=tuple(self.width // known if size == -1 else size for size in shape))

    def flatten(self, start: int) -> Rows:
        if start not in (-2, 1) or len(self.shape_of_row) != 2:
            raise NotRecordable("flattening of other dimensions")
        return replace(self, shape_of_row=(self.width,))

    def __getitem__(self, index: tuple[slice, slice]) -> Rows:
        everything, part = index
        if everything != slice(None) or not isinstance(part, slice):
            raise NotRecordable("a choice of rows")
        start, end, step = part.indices(self.shape_of_row[0])
        if step != 1:
            raise NotRecordable("a choice with gaps")
        inner = prod(self.shape_of_row[1:])
        place = replace(self.place, offset=self.place.offset + start * inner * self.dtype.itemsize)
        return replace(self, place=place, shape_of_row=(end - start, *self.shape_of_row[1:]))

    def new(self, dtype: torch.dtype, *shape: int) -> Rows:
        """As many rows, to be written, side by side."""
        size = prod(shape)
        buffer = Buffer(-(-size * dtype.itemsize // LINE_BYTES) * LINE_BYTES)
        return Rows(self.recording, Place(buffer), dtype, shape, size, self.count)

    def __add__(self, other: Rows) -> Rows:
        return self.recording.add(self, other)

    def __mul__(self, factor: float) -> Rows:
        return self.recording.scale(self, factor)

    def __getattr__(self, name: str) -> Any:
        raise NotRecordable(f"rows have no {name}")

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> Any:
        raise NotRecordable(f"no program does {function}")


class Recording:
    """What has been done so far. dtype: of the rows that come in. operations: in their order."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.operations: list[Operation] = []
        self._rounded: dict[tuple[Place | Given, int], tuple[Rows, Rows]] = {}

    def input(self, width: int) -> Rows:
        """What the program is given."""
        return Rows(self, Given("x"), self.dtype, (width,), width)

    def emit(self, *operation: Any) -> None:
        """Note an operation, given the fields of `Operation`."""
        self.operations.append(Operation(*operation))

    def add(self, x: Rows, y: Rows) -> Rows:
        """The sum; a part of the product that made `y`, where that was the last operation."""
        if not isinstance(y, Rows) or x.count is not y.count:
            raise NotRecordable("a sum of other rows")
        last = self.operations[-1] if self.operations else None
        finish = last.fields.get("finish") if last is not None and last.out is y else None
        if finish is not None and finish["residual"] is None and (x.width, x.dtype) == (y.width, y.dtype):
            finish |= {"residual": x, "residual_stride": x.stride_of_rows}
            return y
        if {x.stride_of_rows, y.stride_of_rows, y.width} != {x.width} or x.dtype != y.dtype:
            raise NotRecordable("a sum of parts")
        out = x.new(x.dtype, *x.shape_of_row)
        fields = {"x": x, "y": y, "out": out, "rows": x.count, "width": x.width}
        self.emit(Kind.ADD, x.dtype, "residual", library.SumTask, fields, out)
        return out

    def scale(self, x: Rows, factor: float) -> Rows:
        """The product with a number."""
        if not isinstance(factor, int | float) or x.stride_of_rows != x.width:
            raise NotRecordable("a product with rows, or of a part")
        out = x.new(x.dtype, *x.shape_of_row)
        fields = {"x": x, "out": out, "rows": x.count, "width": x.width, "factor": factor}
        self.emit(Kind.SCALE, x.dtype, "scaling", library.ScalingTask, fields, out)
        return out

    def rounded(self, x: Rows, padded: int) -> tuple[Rows, Rows]:
        """`x` in int8, `padded` numbers a row, and the step of each row. Once for all products that read it."""
        # The first numbers of a row begin where the whole row does.
        key = (x.place, x.width)
        if key not in self._rounded:
            rows, scales = x.new(torch.uint8, padded), x.new(torch.float32, 1)
            fields = {
                "x": x,
                "stride": x.stride_of_rows,
                "out": rows,
                "scales": scales,
                "rows": x.count,
                "width": x.width,
                "padded": padded,
            }
            self.emit(Kind.QUANTISE, x.dtype, "rounding to int8", library.QuantiseTask, fields)
            self._rounded[key] = rows, scales
        return self._rounded[key]
