"""Products with a weight, by the compiled kernels: float32, bfloat16 and int8 on a CPU.

Each row gives the same bits for every number of rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from typing import Self

import torch
from torch import Tensor

from models.backends.cpu import library, recorded_ops
from models.backends.cpu.library import Kind
from models.backends.cpu.recording import Rows
from models.backends.torch import operations as torch_ops
from models.config import Activation

_ACTIVATIONS: Mapping[Activation, int] = {
    "relu": 1,
    "gelu": 2,
    "gelu_tanh": 3,
    "gelu_quick": 4,
    "silu": 5,
    "tanh": 6,
}
"""`enum Activation` of `kernels/kernels.h`."""

_PANEL = 32


class _Linear(ABC):
    """`x W^T + b`: what all kinds of weights have in common.

    columns: output channels. weight: theirs, one after the other in panels, `padded` numbers each. writes: the dtype of
    the result, and of what it is multiplied by and added to.
    """

    def __init__(self, columns: int, padded: int, weight: Tensor, bias: Tensor | None, writes: torch.dtype) -> None:
        self._columns, self._padded, self._weight, self._writes = columns, padded, weight, writes
        self._bias = None if bias is None else bias.float().contiguous()

    @property
    def nbytes(self) -> int:
        """Memory of the weight and all that belongs to it."""
        return sum(part.nbytes for part in vars(self).values() if isinstance(part, Tensor))

    def __call__(
        self,
        x: Tensor,
        activation: Activation | None = None,
        times: Tensor | None = None,
        residual: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """[rows, in] -> [rows, out]: the activation of the product, times another tensor, plus another.

        out: [rows or more, out], contiguous: its first rows are where the result goes, in place of memory of its own.
        """
        if isinstance(x, Rows):
            return self._record(
                x, recorded_ops.Finish(self._columns, self._bias, _number(activation), times, residual, out)
            )
        x = _rows(x)
        if out is None:
            y = torch.empty(x.shape[0], self._columns, dtype=self._writes)
        else:
            y = out[: x.shape[0]]
            assert y.is_contiguous() and y.shape == (x.shape[0], self._columns) and y.dtype == self._writes
        times, residual = (None if side is None else _rows(side) for side in (times, residual))
        self._multiply(x, _finish(y, self._bias, activation, times, residual))
        return y

    def part(self, first: int, end: int) -> Self | None:
        """See `PackedWeight`."""
        if first % _PANEL:
            return None
        found = copy(self)
        found._columns, found._weight = end - first, self._weight[first * self._padded :]
        found._bias = None if self._bias is None else self._bias[first:end]
        return found

    @abstractmethod
    def _multiply(self, x: Tensor, finish: library.Finish) -> None:
        """x: [rows, in], with its numbers side by side in each row."""

    @abstractmethod
    def _record(self, x: Rows, follows: recorded_ops.Finish) -> Rows: ...


class FloatLinear(_Linear):
    """`x W^T + b` with the weight in panels of channels (`kernels/float_linear.h`), or, to share its memory, as it is.

    weight: [out, in], float32 or bfloat16. bias: [out] or None. packed: false leaves the weight where it is. writes:
    the dtype of the result, the weight's where None, or float32: the sums as they are. A row gives the same bits for
    every number of rows, in either of the two layouts.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, packed: bool = True, writes: torch.dtype | None = None
    ) -> None:
        columns, self._width = weight.shape
        self._is_packed = packed
        self._dtype, group = weight.dtype, 4 // weight.element_size()
        assert writes in (None, weight.dtype, torch.float32), f"products of {weight.dtype} that write {writes}"
        padded = -(-self._width // group) * group
        kept = _panels(weight, padded) if packed else weight.contiguous()
        super().__init__(columns, padded, kept, bias, writes or weight.dtype)

    def rows(self, index: Tensor) -> Tensor:
        """Rows of the weight, as of a table of embeddings. index: [n], int64 -> [n, in]. Raises IndexError."""
        assert self._is_packed
        index = index.contiguous()
        found = torch.empty(index.shape[0], self._width, dtype=self._dtype)
        places = self._weight.data_ptr(), self._columns, self._width, index.data_ptr(), index.shape[0], found.data_ptr()
        if not library.loaded().triptych_float_unpack(library.CODES[found.dtype], *places):
            raise IndexError(f"indices of {self._columns} rows out of range")
        return found

    def _multiply(self, x: Tensor, finish: library.Finish) -> None:
        task = library.FloatLinearTask(
            x.data_ptr(),
            x.stride(0),
            x.shape[0],
            self._width,
            0,
            self._weight.data_ptr(),
            finish,
            self._is_packed,
            library.CODES[self._writes],
        )
        library.do(Kind.FLOAT_LINEAR, x.dtype, task)

    def _record(self, x: Rows, follows: recorded_ops.Finish) -> Rows:
        return recorded_ops.float_linear(x, self._weight, self._is_packed, self._writes, follows)


class Int8Linear(_Linear):
    """See `torch_ops.Int8Linear`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, writes: torch.dtype | None = None) -> None:
        rounded, self._scales = torch_ops.quantize_int8(weight)
        columns, self._width = rounded.shape
        self._dtype, padded = weight.dtype, -(-self._width // 4) * 4
        packed = torch.empty(-(-columns // _PANEL) * _PANEL * padded, dtype=torch.int8)
        self._offsets = torch.empty(columns, dtype=torch.int32)
        super().__init__(columns, padded, packed, bias, writes or weight.dtype)
        library.loaded().triptych_int8_pack(
            rounded.data_ptr(), columns, self._width, packed.data_ptr(), self._offsets.data_ptr()
        )

    def part(self, first: int, end: int) -> Self | None:
        """See `PackedWeight`."""
        found = super().part(first, end)
        if found is not None:
            found._offsets, found._scales = self._offsets[first:end], self._scales[first:end]
        return found

    def rows(self, index: Tensor) -> Tensor:
        """See `torch_ops.Int8Linear.rows`. Raises IndexError."""
        index = index.contiguous()
        found = torch.empty(index.shape[0], self._width, dtype=self._dtype)
        weight = self._weight.data_ptr(), self._scales.data_ptr(), self._columns, self._width
        places = *weight, index.data_ptr(), index.shape[0], found.data_ptr()
        if not library.loaded().triptych_int8_unpack(library.CODES[found.dtype], *places):
            raise IndexError(f"indices of {self._columns} rows out of range")
        return found

    def _multiply(self, x: Tensor, finish: library.Finish) -> None:
        rounded, scales = torch.empty(x.shape[0], self._padded, dtype=torch.uint8), torch.empty(x.shape[0])
        places = rounded.data_ptr(), scales.data_ptr()
        rounding = library.QuantiseTask(x.data_ptr(), x.stride(0), *places, x.shape[0], self._width, self._padded)
        library.do(Kind.QUANTISE, x.dtype, rounding)
        weight = self._weight.data_ptr(), self._scales.data_ptr(), self._offsets.data_ptr()
        task = library.Int8LinearTask(*places, x.shape[0], self._padded, 0, *weight, finish)
        library.do(Kind.INT8_LINEAR, self._writes, task)

    def _record(self, x: Rows, follows: recorded_ops.Finish) -> Rows:
        weight = self._weight, self._scales, self._offsets
        return recorded_ops.int8_linear(x, *weight, self._padded, self._writes, follows)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `torch_ops.linear`. The weight stays as it is: for tables and matrices that are read elsewhere too."""
    if x.dim() != 2 or weight.dtype != x.dtype:
        return torch_ops.linear(x, weight, bias)
    return FloatLinear(weight, bias, packed=False)(x)


def _panels(weight: Tensor, padded: int) -> Tensor:
    columns, width = weight.shape
    weight = weight.contiguous()
    packed = torch.empty(-(-columns // _PANEL) * _PANEL * padded, dtype=weight.dtype)
    library.loaded().triptych_float_pack(
        library.CODES[weight.dtype], weight.data_ptr(), columns, width, packed.data_ptr()
    )
    return packed


def _number(activation: Activation | None) -> int:
    return 0 if activation is None else _ACTIVATIONS[activation]


def _rows(x: Tensor) -> Tensor:
    """x: [rows, width], with its numbers side by side in each row."""
    return x if x.stride(1) == 1 else x.contiguous()


def _finish(
    y: Tensor, bias: Tensor | None, activation: Activation | None, times: Tensor | None, residual: Tensor | None
) -> library.Finish:
    """What follows a product that is written to `y`. All of these have to live until it is there."""
    return library.Finish(
        None if bias is None else bias.data_ptr(),
        None if times is None else times.data_ptr(),
        0 if times is None else times.stride(0),
        None if residual is None else residual.data_ptr(),
        0 if residual is None else residual.stride(0),
        y.data_ptr(),
        y.stride(0),
        y.shape[1],
        _number(activation),
    )
