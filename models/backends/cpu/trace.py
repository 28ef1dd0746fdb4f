"""Symbolic tensors: calling a model with them records its operations instead of computing them.

Each operation of `operations.py` appends itself to the `Trace` of its arguments. An operation that cannot be recorded
raises NotTraceable; the model then runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

import torch

from models.backends.cpu.header import Operation
from models.backends.cpu.library import OPERATIONS

Made = TypeVar("Made")

LINE_BYTES = 64
"""Rows of scratch memory are padded to whole cache lines of this size, so that every buffer begins at a cache line."""


class NotTraceable(Exception):
    """The model uses an operation that a program cannot contain."""


class RowCount:
    """Stands for the number of rows of a program's input, which is not known before a run."""


ROWS = RowCount()


@dataclass(frozen=True)
class ProgramInput:
    """An address or a number that the caller sets before each run. offset: bytes added to it."""

    name: Hashable
    offset: int = 0


@dataclass(eq=False)
class Buffer:
    """Scratch memory of a program.

    row_bytes: bytes of one row.
    first, last: indices of the first and the last operation that use the buffer.
    """

    row_bytes: int
    first: int = -1
    last: int = -1


@dataclass(frozen=True)
class ScratchAddress:
    """An address in scratch memory. offset: bytes within the first row."""

    buffer: Buffer
    offset: int = 0


@dataclass(frozen=True)
class SymbolicMetadata:
    """`AttentionMetadata` of a trace: names the program inputs that hold the metadata of each later step.

    pattern: the `AttentionPattern`, part of every name. bias_name: program input with the score bias, or None.
    """

    pattern: Hashable
    bias_name: Hashable | None = None

    def input(self, name: str) -> ProgramInput:
        return ProgramInput((self.pattern, name))


@dataclass
class TracedOperation:
    """One recorded operation.

    dtype: dtype in which the kernel computes.
    fields: value of each field: a number, a tensor (a constant), a SymbolicTensor, a ProgramInput, ROWS or None.
    """

    operation: Operation
    dtype: torch.dtype
    fields: dict[str, Any]


class Trace:
    """The operations recorded so far, in order."""

    def __init__(self) -> None:
        self.operations: list[TracedOperation] = []
        self._made: dict[Hashable, Any] = {}

    def input(self, name: Hashable, dtype: torch.dtype, *row_shape: int, count: Any = ROWS) -> SymbolicTensor:
        """A tensor [count, *row_shape] that the caller provides, contiguous. count: ROWS or a ProgramInput."""
        return SymbolicTensor(self, ProgramInput(name), dtype, row_shape, prod(row_shape), count)

    def append(self, operation: Operation, dtype: torch.dtype, fields: dict[str, Any]) -> None:
        self.operations.append(TracedOperation(operation, dtype, fields))

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """The result of `make`, which is called only the first time that `key` is used."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class SymbolicTensor:
    """Stands for a tensor [count, *row_shape] in a trace. Has the few tensor methods that operations use.

    Numbers of one row are contiguous; rows are `row_stride` numbers apart. count: ROWS or a ProgramInput.
    """

    trace: Trace
    address: ScratchAddress | ProgramInput
    dtype: torch.dtype
    row_shape: tuple[int, ...]
    row_stride: int
    count: Any = ROWS

    @property
    def shape(self) -> tuple[Any, ...]:
        return (self.count, *self.row_shape)

    @property
    def is_cpu(self) -> bool:
        return True

    def dim(self) -> int:
        return 1 + len(self.row_shape)

    def stride(self, dim: int) -> int:
        dim %= self.dim()
        return prod(self.row_shape[dim:]) if dim else self.row_stride

    def element_size(self) -> int:
        return self.dtype.itemsize

    def contiguous(self) -> SymbolicTensor:
        if self.row_stride != prod(self.row_shape):
            raise NotTraceable("a contiguous copy")
        return self

    def new_empty(self, shape: tuple[Any, ...], dtype: torch.dtype | None = None) -> SymbolicTensor:
        count, *row_shape = shape
        dtype, size = dtype or self.dtype, prod(row_shape)
        buffer = Buffer(-(-size * dtype.itemsize // LINE_BYTES) * LINE_BYTES)
        return SymbolicTensor(self.trace, ScratchAddress(buffer), dtype, tuple(row_shape), size, count)

    def view(self, count: object, *shape: int) -> SymbolicTensor:
        if count is not self.count:
            raise NotTraceable("a view with another number of rows")
        known, width = prod(size for size in shape if size != -1), prod(self.row_shape)
        return replace(self, row_shape=tuple(width // known if size == -1 else size for size in shape))

    def flatten(self, start: int) -> SymbolicTensor:
        if start not in (-2, 1) or len(self.row_shape) != 2:
            raise NotTraceable("a flatten of other dimensions")
        return replace(self, row_shape=(prod(self.row_shape),))

    def __getitem__(self, index: tuple[slice, slice]) -> SymbolicTensor:
        everything, part = index
        if everything != slice(None) or not isinstance(part, slice):
            raise NotTraceable("an index of rows")
        start, end, step = part.indices(self.row_shape[0])
        if step != 1:
            raise NotTraceable("a slice with gaps")
        offset = start * prod(self.row_shape[1:]) * self.dtype.itemsize
        address = replace(self.address, offset=self.address.offset + offset)
        return replace(self, address=address, row_shape=(end - start, *self.row_shape[1:]))

    def __add__(self, other: SymbolicTensor) -> SymbolicTensor:
        """Record the sum. If `other` is the result of the last product, `self` becomes the residual of that product."""
        if not isinstance(other, SymbolicTensor) or self.count is not other.count:
            raise NotTraceable("a sum of different rows")
        if (self.row_shape, self.dtype) != (other.row_shape, other.dtype):
            raise NotTraceable("a sum of different shapes or dtypes")
        last = self.trace.operations[-1].fields if self.trace.operations else {}
        is_last_product = last.get("out") is other and last.get("residual", self) is None
        if is_last_product:
            last |= {"residual": self, "residual_stride": self.row_stride}
            return other
        fields = {"x": self.contiguous(), "y": other.contiguous(), **self._elementwise()}
        self.trace.append(OPERATIONS["add"], self.dtype, fields)
        return fields["out"]  # type: ignore[no-any-return]

    def __mul__(self, factor: float) -> SymbolicTensor:
        if not isinstance(factor, int | float):
            raise NotTraceable("a product of tensors")
        fields = {"x": self.contiguous(), "factor": factor, **self._elementwise()}
        self.trace.append(OPERATIONS["scale"], self.dtype, fields)
        return fields["out"]  # type: ignore[no-any-return]

    def _elementwise(self) -> dict[str, Any]:
        return {"out": self.new_empty(self.shape), "rows": self.count, "width": prod(self.row_shape)}

    def __getattr__(self, name: str) -> Any:
        raise NotTraceable(f"a symbolic tensor has no {name}")

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> Any:
        raise NotTraceable(f"no program does {function}")
