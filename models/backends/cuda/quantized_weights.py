"""Linear weights of 8 and 4 bits, which the Triton kernels dequantize tile by tile. Activations are not rounded.

Importing this file imports triton.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from models.backends.cuda.kernels.matrices import HALF_RUN, Int4Matrix, Int8Matrix, pack_int4
from models.backends.cuda.kernels.quantized_linear import int4_linear, int8_linear
from models.backends.torch.activations import activate
from models.config import Activation
from weights.quantized_matrix import QuantizedMatrix

RUN = 2 * HALF_RUN
"""The number of inputs of a 4-bit matrix is padded to a multiple of this, because codes are packed in runs of 64
inputs."""
_MIDDLE = 8
"""Code of a 4-bit matrix that stands for zero, before minimums are subtracted."""


class DequantizedInTiles(ABC):
    """Base class of the weights that a kernel dequantises tile by tile. Implements `LinearWeight`.

    shape: numbers of output and of input features.
    bias: [out] or None.
    dtype: dtype of the result of `rows`.
    out_dtype: dtype of the products.
    """

    def __init__(self, shape: Sequence[int], bias: Tensor | None, dtype: torch.dtype, out_dtype: torch.dtype) -> None:
        (self._columns, self._width), self._dtype, self._out_dtype = shape, dtype, out_dtype
        self._bias = None if bias is None else bias.contiguous()

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales, minimums and bias."""
        return sum(part.nbytes for part in (*self._parts(), self._bias) if part is not None)

    def multiply(
        self,
        x: Tensor,
        activation: Activation | None = None,
        multiplier: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Compute `activation(x W^T + b) * multiplier`. Arguments and result as for `LinearWeight.multiply`."""
        y = x.new_empty((len(x), self._columns), dtype=self._out_dtype) if out is None else out[: len(x)]
        product = self._product(x if x.stride(-1) == 1 else x.contiguous(), y)
        if activation is None and multiplier is None:
            return product
        product = product if activation is None else activate(product, activation)
        product = product if multiplier is None else product * multiplier
        return product if out is None else y.copy_(product)

    def slice(self, first: int, end: int) -> Self:
        """The output features first..end-1 as a weight in the same memory."""
        found = copy(self)
        found._columns, found._bias = end - first, None if self._bias is None else self._bias[first:end]
        found._cut(first, end)
        return found

    @abstractmethod
    def rows(self, index: Tensor) -> Tensor:
        """Rows of the weight, dequantised, for an embedding that is tied to it. index: [n], int64 -> [n, in]."""

    @abstractmethod
    def _parts(self) -> tuple[Tensor | None, ...]:
        """The tensors of the matrix: codes, scales, and minimums, which may be None."""

    @abstractmethod
    def _cut(self, first: int, end: int) -> None:
        """Keep only the output features first..end-1 of the matrix."""

    @abstractmethod
    def _product(self, x: Tensor, out: Tensor) -> Tensor:
        """Write `x W^T + b` to `out` and return it. x: [rows, in], the last dimension contiguous."""


class Int8InTiles(DequantizedInTiles):
    """A weight of 8 bits with a scale per output feature.

    codes: [out, in], int8.
    scales: [out], float32.
    bias, dtype, out_dtype: as for the base class.
    """

    def __init__(
        self, codes: Tensor, scales: Tensor, bias: Tensor | None, dtype: torch.dtype, out_dtype: torch.dtype
    ) -> None:
        super().__init__(codes.shape, bias, dtype, out_dtype)
        self._matrix = Int8Matrix(codes.contiguous(), scales.contiguous())

    def rows(self, index: Tensor) -> Tensor:
        codes, scales = self._matrix.codes[index], self._matrix.scales[index]
        return (codes.float() * scales[:, None]).to(self._dtype)

    def _parts(self) -> tuple[Tensor | None, ...]:
        return self._matrix

    def _cut(self, first: int, end: int) -> None:
        self._matrix = Int8Matrix(*(part[first:end] for part in self._matrix))

    def _product(self, x: Tensor, out: Tensor) -> Tensor:
        return int8_linear(x, self._matrix, self._bias, out)


class Int4InTiles(DequantizedInTiles):
    """A weight of 4 bits with a scale for each group of inputs.

    matrix: a matrix for which `fits` is true.
    bias, dtype, out_dtype: as for the base class.
    """

    def __init__(
        self, matrix: QuantizedMatrix, bias: Tensor | None, dtype: torch.dtype, out_dtype: torch.dtype
    ) -> None:
        super().__init__(matrix.shape, bias, dtype, out_dtype)
        padding = -self._width % RUN
        width = self._width + padding
        group = matrix.group if matrix.group < self._width else width
        codes, scales, minimums = matrix.codes, matrix.scales, matrix.minimums
        if codes.dtype == torch.int8:
            codes = codes + _MIDDLE
        else:
            # `scale * code - minimum` as `scale * (code - 8) - (minimum - 8 * scale)`.
            minimums = (0.0 if minimums is None else minimums) - _MIDDLE * scales
        # The padding of x is zero, so the padding of the codes can have any value.
        codes = F.pad(codes.to(torch.uint8), (0, padding), value=_MIDDLE)
        more = -(-width // group) - scales.shape[1]
        minimums = None if minimums is None else _narrow(F.pad(minimums, (0, more)))
        self._padding = padding
        self._matrix = Int4Matrix(pack_int4(codes), _narrow(F.pad(scales, (0, more))), minimums, group)

    def rows(self, index: Tensor) -> Tensor:
        codes, scales, minimums, group = self._matrix
        runs = codes[index].unflatten(1, (-1, 1, HALF_RUN))  # type: ignore[no-untyped-call]
        values = torch.cat([runs & 15, runs >> 4], 2).flatten(1).float() - _MIDDLE
        number = torch.arange(self._width, device=codes.device) // group
        values = values[:, : self._width] * scales[index].float()[:, number]
        return (values if minimums is None else values - minimums[index].float()[:, number]).to(self._dtype)

    def _parts(self) -> tuple[Tensor | None, ...]:
        return self._matrix[:3]

    def _cut(self, first: int, end: int) -> None:
        codes, scales, minimums, group = self._matrix
        minimums = None if minimums is None else minimums[first:end]
        self._matrix = Int4Matrix(codes[first:end], scales[first:end], minimums, group)

    def _product(self, x: Tensor, out: Tensor) -> Tensor:
        return int4_linear(F.pad(x, (0, self._padding)) if self._padding else x, self._matrix, self._bias, out)


def fits(matrix: QuantizedMatrix) -> bool:
    """Whether the 4-bit kernel supports a matrix.

    The kernel needs codes without a table. A group must be a whole row or have a multiple of 32 inputs.

    matrix: may be on the meta device.
    """
    whole = matrix.group % 32 == 0 or matrix.group >= matrix.shape[1]
    return matrix.bits == 4 and matrix.table is None and whole


def _narrow(x: Tensor) -> Tensor:
    """`x` as a contiguous tensor: in float16 if this changes no number, else in float32, as on the meta device."""
    if x.is_meta:
        return x.contiguous()
    half = x.half()
    return (half if torch.equal(half.float(), x) else x).contiguous()
