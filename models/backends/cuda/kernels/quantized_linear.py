"""Products of rows with weights of 8 or 4 bits. A tile of the weight's codes is the first operand of a matrix product.

Float rows are multiplied with codes that are converted in registers. This takes longer than reading the weight once
there are many rows. Rows of codes (`rounded_rows`) are multiplied without this conversion.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.codes import CODE_FACTOR
from models.backends.cuda.kernels.launch import is_float32, kernel
from models.backends.cuda.kernels.matrices import HALF_RUN, ByteMatrix, Int4Matrix
from models.backends.cuda.kernels.quantized_sums import bytes_of_step, inputs_of_step, quantized_sums
from models.backends.cuda.kernels.rounded_rows import GROUP, RoundedRows
from models.backends.cuda.kernels.row_products import byte_row, int4_row


def quantized_linear(
    x: Tensor | RoundedRows,
    weight: ByteMatrix | Int4Matrix,
    bias: Tensor | None,
    out: Tensor | None = None,
    fixed_order: bool = False,
) -> Tensor:
    """`x W^T + b`.

    x: [rows, in], float16, bfloat16 or float32, rows contiguous; or rounded rows, whose codes are fp8 for an fp8
        weight and int8 for other weights. For a 4-bit weight, `in` is a multiple of 64.
    bias: [out], any float dtype, or None.
    out: [rows, out], contiguous, any float dtype: memory for the result; None for new memory in the dtype of x. Rounded
        rows need it.
    fixed_order: whether the tiles are the same for every number of rows, so that a float row of the result has the same
        bits.
    Returns `out`, or a new tensor.
    """
    numbers = x if isinstance(x, Tensor) else x.codes[0]
    (rows, inputs), columns = numbers.shape, weight.codes.shape[0]
    if out is None:
        assert isinstance(x, Tensor), "rounded rows need memory for the result"
        out = x.new_empty(rows, columns)
    if rows == 1 and isinstance(x, Tensor) and not fixed_order:
        if isinstance(weight, ByteMatrix):
            return byte_row(x, weight, bias, out)
        return int4_row(x, weight, bias, out)
    if not rows or not columns:
        return out
    settings = SumSettings.of(x, weight)
    tiles = _tiles(x, weight, _FIXED_ROWS if fixed_order else rows)
    minimums = weight.minimums if isinstance(weight, Int4Matrix) else None
    _linear_kernel[-(-rows // tiles.rows), -(-columns // tiles.columns)](
        numbers,
        weight.scales if isinstance(x, Tensor) else x.scales,
        weight.codes,
        weight.scales,
        weight.scales if minimums is None else minimums,
        weight.scales if bias is None else bias,
        out,
        numbers.stride(0),
        rows,
        columns,
        inputs,
        1 if isinstance(x, Tensor) else x.scales.shape[1],
        weight.scales.shape[1],
        CODES=settings.codes,
        FACTOR=CODE_FACTOR[settings.codes],
        TERMS=settings.terms,
        X_GROUP=GROUP,
        GROUP=settings.group,
        HAS_MINIMUMS=minimums is not None,
        HAS_BIAS=bias is not None,
        BYTES=bytes_of_step(weight.group, tiles.inputs),
        HALF_RUN=HALF_RUN,
        ROW_TILE=tiles.rows,
        COLUMN_TILE=tiles.columns,
        INPUT_TILE=settings.inputs_of_step(weight.group, tiles.inputs),
        num_warps=tiles.warps,
        enable_fp_fusion=True,
        num_stages=tiles.stages,
    )
    return out


class SumSettings(NamedTuple):
    """Constants of `quantized_sums`.

    codes: kind of the weight's codes; empty for 4 bits. terms: number of codes per number of x; 0 for float rows.
    group: inputs of the weight that share a scale; 0 for a whole row of 8-bit codes.
    """

    codes: str
    terms: int
    group: int

    @classmethod
    def of(cls, x: Tensor | RoundedRows, weight: ByteMatrix | Int4Matrix) -> SumSettings:
        terms = 0 if isinstance(x, Tensor) else x.codes.shape[0]
        inputs = x.shape[1] if isinstance(x, Tensor) else x.codes.shape[2]
        if isinstance(weight, ByteMatrix):
            return cls(weight.kind, terms, 0 if weight.group >= inputs else weight.group)
        assert inputs == 2 * weight.codes.shape[-1], (inputs, weight.codes.shape)
        assert weight.group % HALF_RUN == 0 or weight.group >= inputs, weight.group
        return cls("", terms, weight.group)

    def inputs_of_step(self, group: int, most: int) -> int:
        """Number of inputs that a step of an 8-bit product multiplies. most: inputs of a tile."""
        return most if not self.codes or not self.group else inputs_of_step(group, most)


class Tiles(NamedTuple):
    """Sizes of a matrix product: rows, outputs and inputs of a tile, warps of a program, and stages of its loop."""

    rows: int
    columns: int
    inputs: int
    warps: int
    stages: int


_FIXED_ROWS = 64
"""With a fixed order of sums, every product has the tiles that are chosen for this number of rows."""


def _tiles(x: Tensor | RoundedRows, weight: ByteMatrix | Int4Matrix, rows: int) -> Tiles:
    """Choose the sizes of a product. rows: number of rows for which the product should be fast."""
    kind = weight.kind if isinstance(weight, ByteMatrix) else ""
    if isinstance(x, Tensor):
        return _byte_tiles(rows, x.dtype, kind) if kind else _int4_tiles(rows, x.dtype)
    # Compiled, and not tuned on a device.
    if kind:
        return Tiles(64, 128, GROUP, 8, 3)
    return Tiles(64, 64, GROUP, 4 if bytes_of_step(weight.group, GROUP) == HALF_RUN else 8, 3)


def _byte_tiles(rows: int, dtype: torch.dtype, kind: str) -> Tiles:
    """Sizes of the 8-bit product for float rows.

    Few rows get small tiles, so that more programs read the weight.

    Tuned on an H200: docs/gpu.md.
    """
    if is_float32(dtype):
        return Tiles(16, 32, 32, 4, 3)
    if rows <= 16:
        return Tiles(16, 32, 128, 4, 4)
    # The conversion of fp8 codes needs the registers of more warps.
    warps = 8 if kind == "fp8" else 4
    return Tiles(64, 64, 256, warps, 3) if rows <= 64 else Tiles(128, 64, 128, warps, 3)


def _int4_tiles(rows: int, dtype: torch.dtype) -> Tiles:
    """Sizes of the 4-bit product for float rows. Few rows get small tiles, as in `_byte_tiles`."""
    if is_float32(dtype):
        return Tiles(16, 32, 64, 4, 3)
    if rows <= 16:
        return Tiles(16, 32, 128, 4, 4)
    return Tiles(64, 64, 128, 8, 4) if rows <= 64 else Tiles(128, 64, 128, 8, 3)


@kernel(do_not_specialize=["rows"])
def _linear_kernel(
    x,
    x_scales,
    codes,
    scales,
    minimums,
    bias,
    out,
    x_row,
    rows,
    columns,
    inputs,
    x_groups,
    groups,
    CODES: tl.constexpr,
    FACTOR: tl.constexpr,
    TERMS: tl.constexpr,
    X_GROUP: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BYTES: tl.constexpr,
    HALF_RUN: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
    INPUT_TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    column = tl.program_id(1).to(tl.int64) * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
    is_row, is_column = row < rows, column < columns
    total = quantized_sums(
        x + row * x_row, x_scales + row * x_groups, rows.to(tl.int64) * inputs, is_row, codes, scales, minimums, column,
        is_column, inputs, groups, CODES, FACTOR, TERMS, X_GROUP, GROUP, HAS_MINIMUMS, BYTES, HALF_RUN, ROW_TILE,
        COLUMN_TILE, INPUT_TILE,
    )  # fmt: skip
    if HAS_BIAS:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
    place = row[:, None] * columns + column[None, :]
    tl.store(out + place, tl.trans(total).to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])
