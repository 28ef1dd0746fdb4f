"""Products of rows with weights of 8 or 4 bits.

A tile of codes is converted in registers and becomes the first operand of a matrix product. The rows of x are the
second operand. Codes of 4 bits are multiplied as integers, without rounding. The sums of a group are then multiplied by
its scale.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.codes import CODE_FACTOR, code_numbers, codes_to_float
from models.backends.cuda.kernels.launch import is_float32, kernel
from models.backends.cuda.kernels.matrices import HALF_RUN, ByteMatrix, Int4Matrix
from models.backends.cuda.kernels.row_products import byte_row, int4_row


def byte_linear(
    x: Tensor, weight: ByteMatrix, bias: Tensor | None, out: Tensor | None = None, fixed_order: bool = False
) -> Tensor:
    """`x W^T + b`. x: [rows, in], float16, bfloat16 or float32, rows contiguous. bias: [out], dtype of x, or None.

    out: [rows, out], contiguous: memory for the result; None for new memory.
    fixed_order: whether the tiles, and with them the bits of a row, are the same for every number of rows.
    Returns `out`, or a new tensor [rows, out] in the dtype of x.
    """
    rows, columns, out = x.shape[0], weight.codes.shape[0], _result(x, weight.codes, out)
    if rows == 1 and not fixed_order:
        return byte_row(x, weight, bias, out)
    if rows == 0:
        return out
    tiles = _byte_tiles(_FIXED_ROWS if fixed_order else rows, x.dtype, weight.kind)
    is_whole = weight.group >= x.shape[1]
    _byte_kernel[-(-rows // tiles.rows), -(-columns // tiles.columns)](
        x,
        weight.codes,
        weight.scales,
        weight.scales if bias is None else bias,
        out,
        x.stride(0),
        rows,
        columns,
        x.shape[1],
        weight.scales.shape[1],
        CODES=weight.kind,
        FACTOR=CODE_FACTOR[weight.kind],
        GROUP=0 if is_whole else weight.group,
        HAS_BIAS=bias is not None,
        ROW_TILE=tiles.rows,
        COLUMN_TILE=tiles.columns,
        INPUT_TILE=tiles.inputs if is_whole else inputs_of_step(weight.group, tiles.inputs),
        num_warps=tiles.warps,
        enable_fp_fusion=True,
        num_stages=tiles.stages,
    )
    return out


def int4_linear(
    x: Tensor, weight: Int4Matrix, bias: Tensor | None, out: Tensor | None = None, fixed_order: bool = False
) -> Tensor:
    """`x W^T + b`, arguments as for `byte_linear`."""
    rows, columns, out = x.shape[0], weight.codes.shape[0], _result(x, weight.codes, out)
    assert x.shape[1] == 2 * weight.codes.shape[1], (x.shape, weight.codes.shape)
    assert weight.group % HALF_RUN == 0 or weight.group >= x.shape[1], weight.group
    if rows == 1 and not fixed_order:
        return int4_row(x, weight, bias, out)
    if rows == 0:
        return out
    tiles = _int4_tiles(_FIXED_ROWS if fixed_order else rows, x.dtype)
    _int4_kernel[-(-rows // tiles.rows), -(-columns // tiles.columns)](
        x,
        weight.codes,
        weight.scales,
        weight.scales if weight.minimums is None else weight.minimums,
        weight.scales if bias is None else bias,
        out,
        x.stride(0),
        rows,
        columns,
        x.shape[1],
        weight.scales.shape[1],
        GROUP=weight.group,
        HAS_MINIMUMS=weight.minimums is not None,
        HAS_BIAS=bias is not None,
        ROW_TILE=tiles.rows,
        COLUMN_TILE=tiles.columns,
        HALF_RUN=HALF_RUN,
        BYTES=bytes_of_step(weight.group, tiles.inputs),
        num_warps=tiles.warps,
        enable_fp_fusion=True,
        num_stages=tiles.stages,
    )
    return out


def _result(x: Tensor, codes: Tensor, out: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], codes.shape[0]) if out is None else out


class Tiles(NamedTuple):
    """Sizes of a matrix product: rows, outputs and inputs of a tile, warps of a program, and stages of its loop."""

    rows: int
    columns: int
    inputs: int
    warps: int
    stages: int


_FIXED_ROWS = 64
"""Products in a fixed order have the tiles of this number of rows, however many rows they have."""


def _byte_tiles(rows: int, dtype: torch.dtype, kind: str) -> Tiles:
    """Sizes of the 8-bit product for x with this number of rows.

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
    """Sizes of the 4-bit product for x with this number of rows. Few rows get small tiles, as in `_byte_tiles`."""
    if is_float32(dtype):
        return Tiles(16, 32, 64, 4, 3)
    if rows <= 16:
        return Tiles(16, 32, 128, 4, 4)
    return Tiles(64, 64, 128, 8, 4) if rows <= 64 else Tiles(128, 64, 128, 8, 3)


def bytes_of_step(group: int, inputs: int) -> int:
    """Number of bytes of codes that one step of the loop processes for each output feature, in a 4-bit product.

    A step covers whole runs, and at most `inputs / 2` bytes, because a byte holds two codes. The lower codes of a step
    share one scale, and so do its upper codes.
    group: number of inputs that share a scale. inputs: number of inputs of a tile.
    """
    size = HALF_RUN
    while 4 * size <= inputs and group % (4 * size) == 0:
        size *= 2
    return size


def inputs_of_step(group: int, most: int) -> int:
    """Number of inputs that one step of the loop multiplies, in an 8-bit product with groups: all share one scale.

    The largest power of two, up to `most`, that divides the group.
    """
    return min(most, group & -group)


@triton.jit
def _store(total, bias, out, row, column, rows, columns, HAS_BIAS: tl.constexpr):
    """Add the bias to a tile of the result and store it.

    total: [columns, rows]: the tile. row, column: indices of its rows and columns in the result.
    """
    is_column = column < columns
    if HAS_BIAS:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
    place = row[:, None] * columns + column[None, :]
    tl.store(out + place, tl.trans(total).to(out.dtype.element_ty), mask=(row < rows)[:, None] & is_column[None, :])


@triton.jit
def byte_sums(
    x_rows,
    is_row,
    codes,
    scales,
    feature,
    is_column,
    inputs,
    groups,
    CODES: tl.constexpr,
    FACTOR: tl.constexpr,
    GROUP: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
    INPUT_TILE: tl.constexpr,
):
    """Products of a tile of rows with some features of 8 bits: [columns, rows], float32.

    x_rows: address of each row. feature: index of each feature, int64; is_column: which of them exist.
    """
    total = tl.zeros([COLUMN_TILE, ROW_TILE], tl.float32)
    for step in range(0, inputs, INPUT_TILE):
        place = step + tl.arange(0, INPUT_TILE)
        is_input = place < inputs
        a = tl.load(x_rows[:, None] + place[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0)
        w = tl.load(
            codes + feature[:, None] * inputs + place[None, :], mask=is_column[:, None] & is_input[None, :], other=0
        )
        w = code_numbers(w, a.dtype, CODES)
        if GROUP > 0:
            scale = tl.load(scales + feature * groups + step // GROUP, mask=is_column, other=0.0).to(tl.float32)
            total += tl.dot(w, tl.trans(a), input_precision="ieee") * scale[:, None]
        else:
            total = tl.dot(w, tl.trans(a), total, input_precision="ieee")
    total *= FACTOR
    if GROUP == 0:
        total *= tl.load(scales + feature, mask=is_column, other=0.0).to(tl.float32)[:, None]
    return total


@triton.jit
def int4_sums(
    x_rows,
    is_row,
    codes,
    scales,
    minimums,
    feature,
    is_column,
    inputs,
    groups,
    GROUP: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    BYTES: tl.constexpr,
    HALF_RUN: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
):
    """Products of a tile of rows with some features of 4 bits: [columns, rows], float32. Arguments: `byte_sums`."""
    total = tl.zeros([COLUMN_TILE, ROW_TILE], tl.float32)
    within = tl.arange(0, BYTES)
    # Input of the lower code of each byte.
    lower = within // HALF_RUN * (2 * HALF_RUN) + within % HALF_RUN
    for step in range(0, inputs, 2 * BYTES):
        is_input = step + lower < inputs
        packed = tl.load(
            codes + feature[:, None] * (inputs // 2) + (step // 2 + within)[None, :],
            mask=is_column[:, None] & is_input[None, :],
            other=0,
        )
        for half in tl.static_range(2):
            place = step + lower + half * HALF_RUN
            a = tl.load(x_rows[:, None] + place[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0)
            w = codes_to_float((packed.to(tl.int32) >> (4 * half)) & 15, 8)
            product = tl.dot(w.to(a.dtype), tl.trans(a), input_precision="ieee")
            group = feature * groups + (step + half * HALF_RUN) // GROUP
            product *= tl.load(scales + group, mask=is_column, other=0.0).to(tl.float32)[:, None]
            if HAS_MINIMUMS:
                minimum = tl.load(minimums + group, mask=is_column, other=0.0).to(tl.float32)
                product -= minimum[:, None] * tl.sum(a.to(tl.float32), 1)[None, :]
            total += product
    return total


@kernel(do_not_specialize=["rows"])
def _byte_kernel(
    x,
    codes,
    scales,
    bias,
    out,
    x_row,
    rows,
    columns,
    inputs,
    groups,
    CODES: tl.constexpr,
    FACTOR: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
    INPUT_TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    column = tl.program_id(1).to(tl.int64) * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
    is_row, is_column = row < rows, column < columns
    total = byte_sums(
        x + row * x_row, is_row, codes, scales, column, is_column, inputs, groups, CODES, FACTOR, GROUP, ROW_TILE,
        COLUMN_TILE, INPUT_TILE,
    )  # fmt: skip
    _store(total, bias, out, row, column, rows, columns, HAS_BIAS)


@kernel(do_not_specialize=["rows"])
def _int4_kernel(
    x,
    codes,
    scales,
    minimums,
    bias,
    out,
    x_row,
    rows,
    columns,
    inputs,
    groups,
    GROUP: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
    HALF_RUN: tl.constexpr,
    BYTES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    column = tl.program_id(1).to(tl.int64) * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
    is_row, is_column = row < rows, column < columns
    total = int4_sums(
        x + row * x_row, is_row, codes, scales, minimums, column, is_column, inputs, groups, GROUP, HAS_MINIMUMS, BYTES,
        HALF_RUN, ROW_TILE, COLUMN_TILE,
    )  # fmt: skip
    _store(total, bias, out, row, column, rows, columns, HAS_BIAS)
