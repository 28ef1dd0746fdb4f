"""Operations on rows that are not there yet: what a model does is written down, to be run as a program.

A model is called once with `Rows` in place of tensors; each operation notes itself in the `Recording` that the rows
belong to. What has no record raises `NotRecordable`, and the model is then computed operation by operation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable
from dataclasses import dataclass, replace
from enum import IntEnum
from math import prod
from typing import Any

import torch
from torch import Tensor

from models.attention_plan import ENDLESS
from models.ops import library
from models.ops.program import LINE_BYTES, Fill, Program, Work

HEADER_WORDS = 3


class Kind(IntEnum):
    """The enumeration of that name in `native/program.h`."""

    RMS_NORM = 0
    RMS_NORM_FROM_ONE = 1
    LAYER_NORM = 2
    ROTATE = 3
    WRITE_SLOTS = 4
    ADD = 5
    ATTEND = 6
    FLOAT_LINEAR = 7
    QUANTISE = 8
    INT8_LINEAR = 9


class NotRecordable(Exception):
    """The model does something that no program can do."""


class _Count:
    """The number of rows, which nobody knows while recording."""


COUNT = _Count()


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


@dataclass(frozen=True)
class Angles(Given):
    """Sines or cosines of a step's positions, [tokens, half], float32."""

    half: int = 0


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
    """name: for people. fields: of the struct, numbers, tensors (constants), `Rows`, `Given`, COUNT, None, or a
    dictionary of such for a struct within the struct. out: what it writes, if that is one thing."""

    kind: Kind
    name: str
    task: type[ctypes.Structure]
    fields: dict[str, Any]
    out: Rows | None = None
    work: Work = Work()


@dataclass(frozen=True, eq=False)
class Rows:
    """In place of a tensor [rows, ...].

    shape_of_row: the other dimensions, contiguous. stride_of_rows: numbers from one row to the next.
    """

    recording: Recording
    place: Place | Given
    dtype: torch.dtype
    shape_of_row: tuple[int, ...]
    stride_of_rows: int

    @property
    def shape(self) -> tuple[Any, ...]:
        return (COUNT, *self.shape_of_row)

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return prod(self.shape_of_row)

    def view(self, rows: object, *shape: int) -> Rows:
        if rows is not COUNT:
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

    def __add__(self, other: Rows) -> Rows:
        return self.recording.add(self, other)

    def __getattr__(self, name: str) -> Any:
        raise NotRecordable(f"rows have no {name}")

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> Any:
        raise NotRecordable(f"no program does {function}")


class Recording:
    """The operations so far. dtype: of the model."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._operations: list[Operation] = []
        self._rounded: dict[Place | Given, tuple[Rows, Rows]] = {}

    def input(self, width: int) -> Rows:
        """What the program is given."""
        return Rows(self, Given("x"), self.dtype, (width,), width)

    def new(self, dtype: torch.dtype, *shape: int) -> Rows:
        """Rows to be written, side by side."""
        size = prod(shape)
        buffer = Buffer(-(-size * dtype.itemsize // LINE_BYTES) * LINE_BYTES)
        return Rows(self, Place(buffer), dtype, shape, size)

    def emit(self, *operation: Any) -> None:
        """Note an operation, given the fields of `Operation`."""
        self._operations.append(Operation(*operation))

    def add(self, x: Rows, y: Rows) -> Rows:
        """The sum; a part of the product that made `y`, where that was the last operation."""
        last = self._operations[-1] if self._operations else None
        finish = last.fields.get("finish") if last is not None and last.out is y else None
        if finish is not None and finish["residual"] is None and x.width == y.width:
            finish |= {"residual": x, "residual_stride": x.stride_of_rows}
            return y
        if not isinstance(y, Rows) or {x.stride_of_rows, y.stride_of_rows, y.width} != {x.width}:
            raise NotRecordable("a sum of parts")
        out = self.new(x.dtype, *x.shape_of_row)
        fields = {"x": x, "y": y, "out": out, "rows": COUNT, "width": x.width}
        self.emit(Kind.ADD, "residual", library.SumTask, fields, out)
        return out

    def rounded(self, x: Rows, padded: int) -> tuple[Rows, Rows]:
        """`x` in int8, `padded` numbers a row, and the step of each row. Once for all products that read it."""
        if x.place not in self._rounded:
            rows, scales = self.new(torch.uint8, padded), self.new(torch.float32, 1)
            fields = {
                "x": x,
                "stride": x.stride_of_rows,
                "out": rows,
                "scales": scales,
                "rows": COUNT,
                "width": x.width,
                "padded": padded,
            }
            self.emit(Kind.QUANTISE, "rounding to int8", library.QuantiseTask, fields)
            self._rounded[x.place] = rows, scales
        return self._rounded[x.place]

    def finish(self, output: Rows) -> Program:
        """The program. output: the rows that it returns."""
        if not isinstance(output.place, Place) or output.place.offset or output.stride_of_rows != output.width:
            raise NotRecordable("an output that is a part of something")
        lowered = _Lowered()
        for operation in self._operations:
            lowered.append(operation, self.dtype)
        return lowered.program(output.place.buffer, output.width)


class _Lowered:
    """Operations as words."""

    def __init__(self) -> None:
        self._words: list[int] = []
        self._names: list[str] = []
        self._works: list[Work] = []
        self._rows_at: list[int] = []
        self._given: dict[Hashable, list[Fill]] = {}
        self._placed: list[tuple[int, Place]] = []
        self._constants: list[Tensor] = []

    def append(self, operation: Operation, dtype: torch.dtype) -> None:
        record, start = operation.task(), len(self._words) + HEADER_WORDS
        self._fill(record, start, operation.fields)
        content = memoryview(bytes(record)).cast("q").tolist()
        self._words += [operation.kind, library.CODES[dtype], len(content), *content]
        self._names.append(operation.name)
        self._works.append(operation.work)

    def program(self, output: Buffer, width: int) -> Program:
        """output: the buffer of what it returns."""
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


def rms_norm(x: Rows, weight: Tensor, eps: float) -> Rows:
    """See `torch_ops.rms_norm`."""
    return _norm(Kind.RMS_NORM, x, weight, None, eps)


def rms_norm_from_one(x: Rows, weight: Tensor, eps: float) -> Rows:
    """See `torch_ops.rms_norm_from_one`."""
    return _norm(Kind.RMS_NORM_FROM_ONE, x, weight, None, eps)


def layer_norm(x: Rows, weight: Tensor, bias: Tensor | None, eps: float) -> Rows:
    """See `torch_ops.layer_norm`."""
    return _norm(Kind.LAYER_NORM, x, weight, bias, eps)


def _norm(kind: Kind, x: Rows, weight: Tensor, bias: Tensor | None, eps: float) -> Rows:
    out, width = x.recording.new(x.dtype, *x.shape_of_row), x.shape_of_row[-1]
    fields = {
        "x": x,
        "stride": x.stride_of_rows,
        "weight": weight,
        "bias": bias,
        "out": out,
        "rows": COUNT,
        "parts": x.width // width,
        "width": width,
        "eps": eps,
    }
    x.recording.emit(kind, "norm", library.NormTask, fields, out)
    return out


def rotate(x: Rows, cos: Angles, sin: Angles, interleaved: bool) -> Rows:
    """See `torch_ops.rotate`."""
    heads, head_dim = x.shape_of_row
    out = x.recording.new(x.dtype, heads, head_dim)
    fields = {
        "x": x,
        "stride": x.stride_of_rows,
        "cos": cos,
        "sin": sin,
        "out": out,
        "tokens": COUNT,
        "heads": heads,
        "head_dim": head_dim,
        "half": cos.half,
        "interleaved": interleaved,
    }
    x.recording.emit(Kind.ROTATE, "rotary positions", library.RotationTask, fields, out)
    return out


def write_slots(key_cache: Cache, value_cache: Cache, slots: Given, key: Rows, value: Rows) -> None:
    """See `torch_ops.write_slots`."""
    size = key.dtype.itemsize
    fields = {
        "key": key,
        "key_stride": key.stride_of_rows * size,
        "value": value,
        "value_stride": value.stride_of_rows * size,
        "key_cache": key_cache,
        "value_cache": value_cache,
        "slots": slots,
        "tokens": COUNT,
        "width": key.width * size,
    }
    key.recording.emit(Kind.WRITE_SLOTS, "writing the cache", library.SlotWriteTask, fields)


def packed_attention(query: Rows, key: Rows, value: Rows, plan: Sight, scale: float, cap: float | None = None) -> Rows:
    """See `torch_ops.packed_attention`."""
    sides = {"keys": key, "key_stride": key.stride_of_rows, "values": value, "value_stride": value.stride_of_rows}
    return _attention(query, {**sides, "block_size": ENDLESS}, key.shape_of_row[0], plan, scale, cap)


def paged_attention(
    query: Rows, key_cache: Cache, value_cache: Cache, plan: Sight, scale: float, cap: float | None = None
) -> Rows:
    """See `torch_ops.paged_attention`."""
    stride = key_cache.kv_heads * query.shape_of_row[1]
    sides = {"keys": key_cache, "key_stride": stride, "values": value_cache, "value_stride": stride}
    sides["block_size"] = plan.given("block_size")
    return _attention(query, sides, key_cache.kv_heads, plan, scale, cap)


def _attention(query: Rows, sides: dict[str, Any], kv_heads: int, plan: Sight, scale: float, cap: float | None) -> Rows:
    heads, head_dim = query.shape_of_row
    out = query.recording.new(query.dtype, heads, head_dim)
    fields = {
        "query": query,
        "query_stride": query.stride_of_rows,
        **sides,
        **{name: plan.given(name) for name in ("tables", "table_width", "rows", "starts", "ends", "origins", "tiles")},
        "num_tiles": plan.given("num_tiles"),
        "bias": None if plan.bias is None else Given(plan.bias),
        "bias_stride": 0 if plan.bias is None else plan.given("bias_stride"),
        "bias_zero": 0 if plan.bias is None else plan.given("bias_zero"),
        "out": out,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "scale": scale,
        "cap": cap or 0.0,
    }
    query.recording.emit(Kind.ATTEND, "attention", library.AttentionTask, fields, out)
    return out


@dataclass(frozen=True)
class Finish:
    """What follows a product. activation: its number in `native/kernels.h`."""

    columns: int
    bias: Tensor | None
    activation: int = 0
    times: Rows | None = None

    def fields(self, out: Rows) -> dict[str, Any]:
        times = self.times
        return {
            "bias": self.bias,
            "times": times,
            "times_stride": 0 if times is None else times.stride_of_rows,
            "residual": None,
            "residual_stride": 0,
            "out": out,
            "out_stride": self.columns,
            "columns": self.columns,
            "activation": self.activation,
        }


def linear(x: Rows, weight: Tensor, bias: Tensor | None) -> Rows:
    """See `torch_ops.linear`."""
    follows = Finish(weight.shape[0], None if bias is None else bias.float())
    return float_linear(x, weight, False, follows)


def float_linear(x: Rows, weight: Tensor, packed: bool, finish: Finish) -> Rows:
    """See `cpu_ops.FloatLinear`. weight: in panels, or as it lies."""
    out = x.recording.new(x.dtype, finish.columns)
    fields = {
        "x": x,
        "stride": x.stride_of_rows,
        "rows": COUNT,
        "width": x.width,
        "weight": weight,
        "finish": finish.fields(out),
        "packed": packed,
    }
    name, work = f"product {x.width} to {finish.columns}", Work(weight.nbytes, 2 * x.width * finish.columns)
    x.recording.emit(Kind.FLOAT_LINEAR, name, library.FloatLinearTask, fields, out, work)
    return out


def int8_linear(x: Rows, weight: Tensor, scales: Tensor, offsets: Tensor, padded: int, finish: Finish) -> Rows:
    """See `cpu_ops.Int8Linear`. weight: in panels."""
    rows, row_scales = x.recording.rounded(x, padded)
    out = x.recording.new(x.dtype, finish.columns)
    fields = {
        "x": rows,
        "row_scales": row_scales,
        "rows": COUNT,
        "padded": padded,
        "weight": weight,
        "weight_scales": scales,
        "offsets": offsets,
        "finish": finish.fields(out),
    }
    name, work = f"product {x.width} to {finish.columns}", Work(weight.nbytes, 2 * x.width * finish.columns)
    x.recording.emit(Kind.INT8_LINEAR, name, library.Int8LinearTask, fields, out, work)
    return out
