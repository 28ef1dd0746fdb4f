"""Lower a trace to a program: operations become 64-bit words, symbolic tensors become addresses in scratch memory."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.backends.cpu import library
from models.backends.cpu.programs.inputs import OUT, ProgramInput
from models.backends.cpu.programs.program import Fill, Program, Work
from models.backends.cpu.programs.trace import (
    Buffer,
    InputAddress,
    RowCount,
    ScratchAddress,
    SymbolicTensor,
    TracedOperation,
)

HEADER_WORDS = 3
"""Words of an operation before its parameters: code, dtype, number of parameters (`kernels/program.h`)."""


def lower(output: SymbolicTensor) -> Program:
    """Turn the trace that computes `output` into a program that returns `output`.

    Raises NotTraceable if `output` is part of another tensor, or if a later sum was fused into the product that
    computes `output`: its memory then holds the sum.
    """
    address = output.address
    if not isinstance(address, ScratchAddress) or address.offset or output.shape[1:] != (output.row_stride,):
        output.trace.refuse("an output that is part of another tensor")
    output.check_unchanged()
    words = _Words()
    for operation in output.trace.operations:
        words.append(operation)
    return words.program(output, address.buffer)


class _Words:
    """Builder of a program: its words so far, and which of them each run must fill in."""

    def __init__(self) -> None:
        self._words: list[int] = []
        self._names: list[str] = []
        self._works: list[Work] = []
        self._row_counts: list[int] = []
        self._inputs: dict[ProgramInput, list[Fill]] = {}
        self._addresses: list[tuple[int, ScratchAddress]] = []
        self._constants: list[Tensor] = []
        self._reuses: list[_Reuse] = []

    def append(self, traced: TracedOperation) -> None:
        operation, start = traced.operation, len(self._words) + HEADER_WORDS
        values = [self._value(start + place, traced.fields[name]) for place, name in enumerate(operation.fields)]
        packed = operation.pack(*values)
        self._words += [operation.code, library.DTYPE_CODES[traced.dtype], len(values)]
        self._words += struct.unpack(f"={len(values)}q", packed)
        self._reuses += _reuses(traced, len(self._names))
        self._names.append(_name(traced))
        self._works.append(_work(traced))

    def program(self, output: SymbolicTensor, result: Buffer) -> Program:
        """Build the program from all operations that were appended.

        result: buffer of the output. It is not in scratch memory, because each run allocates its output.
        """
        scratch: dict[int, list[Fill]] = {}
        buffers = {address.buffer for _, address in self._addresses if address.buffer is not result}
        shared = _share(self._reuses, buffers)
        offsets, size = _lay_out(buffers - shared.keys())
        for index, address in self._addresses:
            if address.buffer is result:
                self._inputs.setdefault(OUT, []).append(Fill(index, address.offset))
            else:
                buffer = shared.get(address.buffer, address.buffer)
                scratch.setdefault(offsets[buffer], []).append(Fill(index, address.offset))
        return Program(
            self._words,
            self._names,
            self._works,
            self._row_counts,
            self._inputs,
            scratch,
            size,
            output.shape[1],
            output.dtype,
            output.count.input,
            self._constants,
        )

    def _value(self, index: int, value: Any) -> Any:
        """The value to store for a field of an operation; 0 if each run of the program sets the value.

        index: index of the field's word in the program. value: value of the field in the trace.
        """
        if isinstance(value, SymbolicTensor):
            value = value.address
        if isinstance(value, RowCount):
            if value.input is None:
                self._row_counts.append(index)
                return 0
            value = value.input
        if isinstance(value, ProgramInput):
            value = InputAddress(value)
        if isinstance(value, InputAddress):
            self._inputs.setdefault(value.input, []).append(Fill(index, value.offset))
        elif isinstance(value, ScratchAddress):
            buffer, current = value.buffer, len(self._names)
            buffer.first, buffer.last = (current if buffer.first < 0 else buffer.first), current
            self._addresses.append((index, value))
        elif isinstance(value, Tensor):
            self._constants.append(value)
            return value.data_ptr()
        else:
            return value or 0
        return 0


def _name(traced: TracedOperation) -> str:
    """Name of an operation in reports.

    The name of a matrix product has the number of inputs and outputs, as in `product 4096 to 11008`. The product of the
    output head is named `output head`.
    """
    fields, traits = traced.fields, traced.operation.traits
    if traits.product_width is None:
        return traced.operation.name
    if isinstance(fields["out"].address, InputAddress):
        return "output head"
    suffix = " of experts" if traits.of_experts else ""
    return f"product {fields[traits.product_width]} to {fields['columns']}{suffix}"


def _work(traced: TracedOperation) -> Work:
    fields, traits = traced.fields, traced.operation.traits
    if traits.product_width is None:
        return Work()
    weight, multiplications = fields["weight"], fields[traits.product_width] * fields["columns"]
    weight_bytes = weight.nbytes
    if traits.of_experts:
        multiplications *= fields["choices"] * (2 if fields["is_gated"] else 1)
        # How many experts a step uses is unknown here. This counts the bytes of one row's experts, a lower bound.
        weight_bytes = multiplications * fields.get("bits", 8 * weight.itemsize) // 8
    return Work(weight_bytes, 2 * multiplications, fields["rows"].input is None)


class _Reuse(NamedTuple):
    """A product that may write its result over its multiplier or its residual.

    operation: index of the operation. operand, out: buffers of the multiplier or residual, and of the result.
    """

    operation: int
    operand: Buffer
    out: Buffer


class _ScratchLayout(NamedTuple):
    """Where a tensor lies in scratch memory.

    offset: bytes from the start of the buffer, within the first row.
    row_stride: elements from one row to the next.
    rows: the program input with the number of rows; None for the number of input rows.
    """

    buffer: Buffer
    offset: int
    dtype: torch.dtype
    row_stride: int
    rows: ProgramInput | None


def _reuses(traced: TracedOperation, index: int) -> Iterator[_Reuse]:
    """Find the operands over which a product may write its result if no later operation reads them.

    Such an operand is the multiplier or the residual. It has the layout of the result, and no other field of the
    product uses its buffer. A product reads each value of its multiplier and residual just before it writes the result
    at the same index.
    index: index of the operation in the program.
    """
    fields, overwritten = traced.fields, traced.operation.traits.overwritten
    out = _scratch_layout(fields["out"]) if overwritten else None
    if out is None:
        return
    used = [layout.buffer for value in fields.values() if (layout := _scratch_layout(value)) is not None]
    for name in overwritten:
        operand = _scratch_layout(fields[name])
        if operand is not None and operand._replace(buffer=out.buffer) == out and used.count(operand.buffer) == 1:
            yield _Reuse(index, operand.buffer, out.buffer)


def _scratch_layout(value: Any) -> _ScratchLayout | None:
    """The layout of a field's value, or None if it is not a tensor in scratch memory."""
    if isinstance(value, SymbolicTensor) and isinstance(value.address, ScratchAddress):
        address = value.address
        return _ScratchLayout(address.buffer, address.offset, value.dtype, value.row_stride, value.count.input)
    return None


def _share(reuses: Iterable[_Reuse], buffers: Collection[Buffer]) -> dict[Buffer, Buffer]:
    """Let results take the memory of operands that no later operation reads.

    The shared memory is in use until the last operation that reads the result, so this function sets `Buffer.last` of
    the operand to that operation.

    buffers: the buffers in scratch memory.
    Returns, for each buffer that needs no separate memory, the buffer whose memory it takes.
    """
    shared: dict[Buffer, Buffer] = {}
    for operation, operand, out in reuses:
        home = shared.get(operand, operand)
        if home in buffers and out in buffers and out not in shared and home.last == out.first == operation:
            home.last = out.last
            shared[out] = home
    return shared


def _lay_out(buffers: Iterable[Buffer]) -> tuple[dict[Buffer, int], int]:
    """Place buffers in scratch memory so that buffers in use at the same time do not overlap.

    Returns the offset of each buffer and the total size, in bytes per row.
    """
    starts: dict[Buffer, int] = {}
    for buffer in sorted(buffers, key=lambda unplaced: (unplaced.first, -unplaced.row_bytes)):
        at = 0
        for other, start in sorted(starts.items(), key=lambda item: item[1]):
            overlap = other.first <= buffer.last and buffer.first <= other.last
            if overlap and at + buffer.row_bytes > start:
                at = max(at, start + other.row_bytes)
        starts[buffer] = at
    return starts, max((start + buffer.row_bytes for buffer, start in starts.items()), default=0)
