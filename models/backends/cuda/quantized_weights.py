"""Linear weights of 8 bits (int8, fp8) and 4 bits. The Triton kernels dequantize them tile by tile, or round the rows.

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

from models.backends.cuda.experts import ExpertProduct
from models.backends.cuda.kernels.matrices import HALF_RUN, ByteMatrix, Int4Matrix, pack_int4
from models.backends.cuda.kernels.quantized_linear import quantized_linear
from models.backends.cuda.product_choice import RowRounding
from models.backends.cuda.product_timing import WeightKind
from models.backends.rounded_slots import FP8
from models.backends.torch.activations import activate
from models.config import Activation
from weights.quantized_matrix import QuantizedMatrix

RUN = 2 * HALF_RUN
"""The number of inputs of a 4-bit matrix is padded to a multiple of this, because codes are packed in runs of 64
inputs."""
_FP8_TABLE = torch.arange(256, dtype=torch.uint8).view(FP8).float()
"""Value of each byte as an fp8 number (E4M3). Two bytes are NaN."""
_MIDDLE = 8
"""Code of a 4-bit matrix that stands for zero, before minimums are subtracted."""


class QuantizedWeight(ABC):
    """Base class of the quantised weights. Implements `LinearWeight`.

    Products of few rows dequantise the weight in registers, and the rows are not rounded. Products of many rows round
    the rows instead: to 15 bits, which is as exact as bfloat16; to fp8 for fp8 weights; and to 8 bits for int8 weights
    that are `fast`. The number of rows that counts as many was measured on the card (`product_choice`). With
    `fixed_order`, rows are never rounded, because the number of rows must not change their results.

    shape: numbers of output and of input features.
    bias: [out] or None.
    dtype: dtype of the result of `rows`.
    out_dtype: dtype of the products.
    fixed_order: whether a row of a product has the same bits for every number of rows.
    kind: kind of the weight, for the choice of its products.
    device: device of the weight.
    """

    def __init__(
        self,
        shape: Sequence[int],
        bias: Tensor | None,
        dtype: torch.dtype,
        out_dtype: torch.dtype,
        fixed_order: bool,
        kind: WeightKind,
        device: torch.device,
    ) -> None:
        (self._columns, self._width), self._dtype, self._out_dtype = shape, dtype, out_dtype
        self._fixed_order, self._kind, self._device = fixed_order, kind, device
        self._rounding = RowRounding.of(kind, device, fixed_order)
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
        """Compute `activation(x W^T + b) * multiplier`.

        x: [rows, in], model dtype. multiplier: [rows, out], dtype of the result.
        out: [rows or more, out], contiguous: memory for the result; None for new memory.
        Returns [rows, out].
        """
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
    def of_experts(self, num_experts: int) -> ExpertProduct:
        """The weight of all experts of a layer, divided into experts."""

    def _divided(self, matrix: ByteMatrix | Int4Matrix, num_experts: int, padding: int = 0) -> ExpertProduct:
        """The result of `of_experts`.

        matrix: the matrix, divided into experts. padding: number of zeros to append to each row of the input.
        """
        bias = None if self._bias is None else self._bias.view(num_experts, -1)
        rounding = RowRounding.of(self._kind, self._device, self._fixed_order, of_experts=True)
        return ExpertProduct(matrix, bias, padding, rounding)

    @abstractmethod
    def _parts(self) -> tuple[Tensor | None, ...]:
        """The tensors of the matrix: codes, scales, and minimums, which may be None."""

    @abstractmethod
    def _cut(self, first: int, end: int) -> None:
        """Keep only the output features first..end-1 of the matrix."""

    @abstractmethod
    def _product(self, x: Tensor, out: Tensor) -> Tensor:
        """Write `x W^T + b` to `out` and return it. x: [rows, in], the last dimension contiguous."""


class BytesInTiles(QuantizedWeight):
    """A weight of 8 bits, int8 or fp8, with a scale for each group of inputs.

    matrix: a matrix of 8 bits for which `fits` is true. bias: [out] or None.
    dtype: dtype of the result of `rows`. out_dtype: dtype of the products.
    fixed_order: whether a row of a product has the same bits for every number of rows.
    fast: whether products of many rows with int8 weights round the rows to 8 bits.
    """

    def __init__(
        self,
        matrix: QuantizedMatrix,
        bias: Tensor | None,
        dtype: torch.dtype,
        out_dtype: torch.dtype,
        fixed_order: bool = False,
        fast: bool = False,
    ) -> None:
        kind: WeightKind = "fp8" if matrix.table is not None else "int8-fast" if fast else "int8"
        super().__init__(matrix.shape, bias, dtype, out_dtype, fixed_order, kind, matrix.codes.device)
        self._matrix = ByteMatrix(matrix.codes.contiguous(), _narrow(matrix.scales), matrix.group)

    def rows(self, index: Tensor) -> Tensor:
        codes, scales, group = self._matrix
        numbers = codes[index] if self._matrix.kind == "int8" else codes[index].view(FP8)
        number = torch.arange(self._width, device=codes.device) // group
        return (numbers.float() * scales[index].float()[:, number]).to(self._dtype)

    def of_experts(self, num_experts: int) -> ExpertProduct:
        codes, scales, group = self._matrix
        codes, scales = (part.view(num_experts, -1, part.shape[1]) for part in (codes, scales))
        return self._divided(ByteMatrix(codes, scales, group), num_experts)

    def _parts(self) -> tuple[Tensor | None, ...]:
        return self._matrix[:2]

    def _cut(self, first: int, end: int) -> None:
        codes, scales, group = self._matrix
        self._matrix = ByteMatrix(codes[first:end], scales[first:end], group)

    def _product(self, x: Tensor, out: Tensor) -> Tensor:
        rows = self._rounding.apply(x, x.shape[0])
        return quantized_linear(rows, self._matrix, self._bias, out, self._fixed_order)


class Int4InTiles(QuantizedWeight):
    """A weight of 4 bits with a scale for each group of inputs.

    matrix: a matrix for which `fits` is true. bias: [out] or None.
    dtype: dtype of the result of `rows`. out_dtype: dtype of the products.
    fixed_order: whether a row of a product has the same bits for every number of rows.
    """

    def __init__(
        self,
        matrix: QuantizedMatrix,
        bias: Tensor | None,
        dtype: torch.dtype,
        out_dtype: torch.dtype,
        fixed_order: bool = False,
    ) -> None:
        super().__init__(matrix.shape, bias, dtype, out_dtype, fixed_order, "int4", matrix.codes.device)
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

    def of_experts(self, num_experts: int) -> ExpertProduct:
        codes, scales, minimums, group = self._matrix
        codes, scales = (part.view(num_experts, -1, part.shape[1]) for part in (codes, scales))
        if minimums is not None:
            minimums = minimums.view(num_experts, -1, minimums.shape[1])
        return self._divided(Int4Matrix(codes, scales, minimums, group), num_experts, self._padding)

    def _parts(self) -> tuple[Tensor | None, ...]:
        return self._matrix[:3]

    def _cut(self, first: int, end: int) -> None:
        codes, scales, minimums, group = self._matrix
        minimums = None if minimums is None else minimums[first:end]
        self._matrix = Int4Matrix(codes[first:end], scales[first:end], minimums, group)

    def _product(self, x: Tensor, out: Tensor) -> Tensor:
        x = F.pad(x, (0, self._padding)) if self._padding else x
        rows = self._rounding.apply(x, x.shape[0])
        return quantized_linear(rows, self._matrix, self._bias, out, self._fixed_order)


def fits(matrix: QuantizedMatrix) -> bool:
    """Whether the kernels support a matrix: codes of 4 bits, int8 without minimums, or fp8.

    A group must be a whole row or have a multiple of 32 inputs.

    matrix: may be on the meta device.
    """
    if matrix.group % 32 and matrix.group < matrix.shape[1]:
        return False
    if matrix.bits == 8 and matrix.minimums is None:
        is_int8 = matrix.table is None and matrix.codes.dtype == torch.int8
        return is_int8 or (matrix.table is not None and _is_fp8(matrix.table))
    return matrix.bits == 4 and matrix.table is None


def _is_fp8(table: Tensor) -> bool:
    """Whether the values of all codes are those of fp8 numbers (E4M3)."""
    return len(table) == 256 and torch.equal(table.cpu().nan_to_num(0.0), _FP8_TABLE.nan_to_num(0.0))


def _narrow(x: Tensor) -> Tensor:
    """`x` as a contiguous tensor: in float16 if this changes no number, else in float32, as on the meta device."""
    if x.is_meta:
        return x.contiguous()
    half = x.half()
    return (half if torch.equal(half.float(), x) else x).contiguous()
