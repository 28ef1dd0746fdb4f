"""Symbolic tensors: calling a model with them records its operations instead of computing them.

Each operation of `operations.py` appends itself to the `Trace` of its arguments. Every other use of a symbolic tensor,
or of its number of rows, raises NotTraceable; the model then runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import torch
from torch import Tensor

from models.backends.cpu.header import Operation
from models.backends.cpu.library import DTYPE_CODES, OPERATIONS
from models.backends.cpu.programs.inputs import ProgramInput, TensorInput
from models.backends.cpu.programs.symbol import NotTraceable, Symbol, model_method

Made = TypeVar("Made")
Arguments = ParamSpec("Arguments")

LINE_BYTES = 64
"""Rows of scratch memory are padded to whole cache lines of this size, so that every buffer begins at a cache line."""


@dataclass(eq=False)
class Buffer:
    """Scratch memory of a program.

    row_bytes: bytes of one row.
    is_sum: whether a residual was fused into the operation that writes the buffer.
    first, last: indices of the first and the last operation that use the buffer.
    """

    row_bytes: int
    is_sum: bool = False
    first: int = -1
    last: int = -1


@dataclass(frozen=True)
class ScratchAddress:
    """An address in scratch memory.

    offset: position of the tensor in the first row of the buffer, in bytes. It has the same position in all other rows.
    is_sum: whether the tensor at this address is the sum of an operation's result and a residual.
    """

    buffer: Buffer
    offset: int = 0
    is_sum: bool = False


@dataclass(frozen=True)
class InputAddress:
    """An address that the caller sets before each run. offset: bytes added to the address."""

    input: ProgramInput
    offset: int = 0


@dataclass(frozen=True)
class SymbolicMetadata:
    """`AttentionMetadata` of a trace: the program inputs that hold the metadata of each later step.

    pattern: the `AttentionPattern`. bias: program input with the score bias, or None.
    """

    pattern: Hashable
    bias: ProgramInput | None = None


@dataclass
class TracedOperation:
    """One recorded operation.

    dtype: dtype in which the kernel computes.
    fields: value of each field: a number, a tensor (a constant), a SymbolicTensor, a ProgramInput, a RowCount or None.
    """

    operation: Operation
    dtype: torch.dtype
    fields: dict[str, Any]

    def takes_residual(self, result: SymbolicTensor) -> bool:
        """Whether an addition to `result` can be fused into this operation.

        The operation must write `result` to scratch memory, support a residual, and have none yet.
        """
        if not self.operation.traits.adds_residual or self.fields["out"] is not result:
            return False
        return self.fields["residual"] is None and isinstance(result.address, ScratchAddress)


class Trace:
    """The operations recorded so far, in order.

    rows: the number of rows of the program's input, which is not known before a run.
    refusal: reason of the first use that a program cannot contain, or None. Code between that use and the caller may
        have replaced or swallowed the exception, so a trace with a refusal is never a program.
    """

    def __init__(self) -> None:
        self.operations: list[TracedOperation] = []
        self.rows = RowCount(self)
        self.refusal: str | None = None
        self._made: dict[Hashable, Any] = {}

    def input(self, input: TensorInput, count: RowCount | None = None) -> SymbolicTensor:
        """A symbolic tensor for a program input. count: number of its rows; None for `rows`."""
        shape, rows = input.row_shape, self.rows if count is None else count
        return SymbolicTensor(self, InputAddress(input), input.dtype, shape, prod(shape), rows)

    def count(self, input: ProgramInput) -> RowCount:
        """A symbolic count of rows, which each run takes from a program input."""
        return RowCount(self, input)

    def append(self, operation: Operation, dtype: torch.dtype, fields: dict[str, Any]) -> None:
        if dtype not in DTYPE_CODES:
            self.refuse(f"{operation.name} in {dtype}")
        for value in fields.values():
            if isinstance(value, SymbolicTensor):
                value.check_unchanged()
        self.operations.append(TracedOperation(operation, dtype, fields))

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """The result of `make`, which is called only the first time that `key` is used."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[no-any-return]

    def refuse(self, use: str) -> NoReturn:
        """Raise NotTraceable. use: what a program cannot contain.

        The message also names the running method of the model.
        """
        reason = f"{use}{model_method()}"
        self.refusal = self.refusal or reason
        raise NotTraceable(reason)


def _supported(
    method: Callable[Concatenate[SymbolicTensor, Arguments], Made],
) -> Callable[Concatenate[SymbolicTensor, Arguments], Made]:
    """Decorator for tensor methods: raise NotTraceable for arguments that torch accepts and the method does not."""

    def call(self: SymbolicTensor, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Made:
        try:
            return method(self, *args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # an error of the method itself
            self.refuse(f"{method.__name__} with other arguments")

    return call


@dataclass(eq=False, repr=False)
class RowCount(Symbol):
    """Stands for a count of rows that differs between runs of a program. No code can compute with it.

    input: the program input that states the count; None if it is the row count of the program's input tensor.
    """

    trace: Trace
    input: ProgramInput | None = None

    def __hash__(self) -> int:
        self.refuse("a table by the number of rows")


class SymbolicShape(tuple[Any, ...]):
    """The shape of a symbolic tensor: a RowCount, then numbers."""

    def __getattr__(self, name: str) -> Any:
        self[0].refuse(f"shape.{name}")


@dataclass(eq=False, repr=False)
class SymbolicTensor(Symbol):
    """Stands for a tensor [count, *row_shape] in a trace. Has the few tensor methods that operations use.

    The elements of a row are contiguous; consecutive rows are `row_stride` elements apart.
    """

    trace: Trace
    address: ScratchAddress | InputAddress
    dtype: torch.dtype
    row_shape: tuple[int, ...]
    row_stride: int
    count: RowCount

    # Comparing tensors is refused, but containers may hold them, as they hold tensors of torch.
    __hash__ = object.__hash__

    @property
    def shape(self) -> SymbolicShape:
        return SymbolicShape((self.count, *self.row_shape))

    @property
    def is_cpu(self) -> bool:
        return True

    @_supported
    def dim(self) -> int:
        return 1 + len(self.row_shape)

    @_supported
    def stride(self, dim: int) -> int:
        if type(dim) is not int or not -self.dim() <= dim < self.dim():
            self.refuse("stride of another dimension")
        dim %= self.dim()
        return prod(self.row_shape[dim:]) if dim else self.row_stride

    @_supported
    def element_size(self) -> int:
        return self.dtype.itemsize

    @_supported
    def contiguous(self) -> SymbolicTensor:
        if self.row_stride != prod(self.row_shape):
            self.refuse("a contiguous copy")
        return self

    @_supported
    def new_empty(self, shape: tuple[Any, ...], dtype: torch.dtype | None = None) -> SymbolicTensor:
        if not isinstance(shape, tuple) or not shape or not isinstance(shape[0], RowCount):
            self.refuse("new_empty with another number of rows")
        if not _are_sizes(shape[1:]) or not isinstance(dtype, torch.dtype | None):
            self.refuse("new_empty with other arguments")
        count, *row_shape = shape
        dtype, size = dtype or self.dtype, prod(row_shape)
        buffer = Buffer(-(-size * dtype.itemsize // LINE_BYTES) * LINE_BYTES)
        return SymbolicTensor(self.trace, ScratchAddress(buffer), dtype, tuple(row_shape), size, count)

    @_supported
    def view(self, count: object, *shape: int) -> SymbolicTensor:
        if count is not self.count:
            self.refuse("a view with another number of rows")
        known, width = prod(size for size in shape if size != -1), prod(self.row_shape)
        if not _are_sizes(shape, 1) or known == 0 or width % known:
            self.refuse("a view of other sizes")
        row_shape = tuple(width // known if size == -1 else size for size in shape)
        if prod(row_shape) != width:
            self.refuse("a view of other sizes")
        return replace(self, row_shape=row_shape)

    @_supported
    def flatten(self, start: int) -> SymbolicTensor:
        if start not in (-2, 1) or len(self.row_shape) != 2:
            self.refuse("a flatten of other dimensions")
        return replace(self, row_shape=(prod(self.row_shape),))

    def __getitem__(self, index: object) -> SymbolicTensor:
        if not isinstance(index, tuple) or len(index) != 2 or not self.row_shape:
            self.refuse("an index other than [:, START:END]")
        everything, part = index
        if not isinstance(everything, slice) or not isinstance(part, slice) or not _is_whole(everything):
            self.refuse("an index other than [:, START:END]")
        start, end, step = part.indices(self.row_shape[0])
        if step != 1 or end <= start:
            self.refuse("a slice with gaps, or without columns")
        offset = start * prod(self.row_shape[1:]) * self.dtype.itemsize
        address = replace(self.address, offset=self.address.offset + offset)
        return replace(self, address=address, row_shape=(end - start, *self.row_shape[1:]))

    def __add__(self, other: object) -> SymbolicTensor:
        """Record the sum. Where possible, fuse it into the operation that computed `other`.

        This is possible if it is the last operation and can add a residual (`TracedOperation.takes_residual`).
        """
        if not isinstance(other, SymbolicTensor) or self.count is not other.count:
            self.refuse("a sum of different rows")
        if (self.row_shape, self.dtype) != (other.row_shape, other.dtype):
            self.refuse("a sum of different shapes or dtypes")
        last = self.trace.operations[-1] if self.trace.operations else None
        if last is not None and last.takes_residual(other):
            self.check_unchanged()
            assert isinstance(other.address, ScratchAddress)
            other.address.buffer.is_sum = True
            total = replace(other, address=replace(other.address, is_sum=True))
            last.fields |= {"residual": self, "residual_stride": self.row_stride, "out": total}
            return total
        fields = {"x": self.contiguous(), "y": other.contiguous(), **self._elementwise()}
        self.trace.append(OPERATIONS["add"], self.dtype, fields)
        return fields["out"]  # type: ignore[no-any-return]

    def __mul__(self, factor: object) -> SymbolicTensor:
        """Record the product with a number, or with a parameter of one number, which becomes a constant."""
        if isinstance(factor, Tensor) and factor.shape == (1,) and factor.dtype == self.dtype:
            factor = float(factor)
        if not isinstance(factor, int | float):
            self.refuse("a product of tensors")
        fields = {"x": self.contiguous(), "factor": factor, **self._elementwise()}
        self.trace.append(OPERATIONS["scale"], self.dtype, fields)
        return fields["out"]  # type: ignore[no-any-return]

    def check_unchanged(self) -> None:
        """Raise NotTraceable if the memory of this tensor now holds a sum, because a later addition was fused."""
        if isinstance(self.address, ScratchAddress) and self.address.is_sum != self.address.buffer.is_sum:
            self.refuse("a product that is read after its sum")

    def _elementwise(self) -> dict[str, Any]:
        return {"out": self.new_empty(self.shape), "rows": self.count, "width": prod(self.row_shape)}


def _are_sizes(sizes: tuple[object, ...], most_unknown: int = 0) -> bool:
    """Whether all sizes of a shape are integers, and at most `most_unknown` of them are -1, a size to be derived."""
    numbers = [size for size in sizes if type(size) is int]
    return len(numbers) == len(sizes) and min(numbers, default=0) >= -1 and numbers.count(-1) <= most_unknown


def _is_whole(part: slice) -> bool:
    """Whether a slice is `:`."""
    return part.start is None and part.stop is None and part.step is None
