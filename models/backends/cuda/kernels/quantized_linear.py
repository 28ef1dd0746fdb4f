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

from models.backends.cuda.kernels.launch import is_float32, kernel
from models.backends.cuda.kernels.matrices import HALF_RUN, Int4Matrix, Int8Matrix
from models.backends.cuda.kernels.row_products import codes_to_float, int4_row, int8_row


def int8_linear(x: Tensor, weight: Int8Matrix, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """`x W^T + b`. x: [rows, in], float16, bfloat16 or float32, rows contiguous. bias: [out], dtype of x, or None.

    out: [rows, out], contiguous: memory for the result; None for new memory.
    Returns `out`, or a new tensor [rows, out] in the dtype of x.
    """
    rows, columns, out = x.shape[0], weight.codes.shape[0], _result(x, weight.codes, out)
    if rows == 1:
        return int8_row(x, weight, bias, out)
    if rows == 0:
        return out
    tiles = _int8_tiles(rows, x.dtype)
    _int8_kernel[-(-rows // tiles.rows), -(-columns // tiles.columns)](
        x,
        weight.codes,
        weight.scales,
        weight.scales if bias is None else bias,
        out,
        x.stride(0),
        rows,
        columns,
        x.shape[1],
        HAS_BIAS=bias is not None,
        ROW_TILE=tiles.rows,
        COLUMN_TILE=tiles.columns,
        INPUT_TILE=tiles.inputs,
        num_warps=tiles.warps,
        enable_fp_fusion=True,
        num_stages=tiles.stages,
    )
    return out


def int4_linear(x: Tensor, weight: Int4Matrix, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """`x W^T + b`, arguments as for `int8_linear`."""
    rows, columns, out = x.shape[0], weight.codes.shape[0], _result(x, weight.codes, out)
    assert x.shape[1] == 2 * weight.codes.shape[1], (x.shape, weight.codes.shape)
    assert weight.group % HALF_RUN == 0 or weight.group >= x.shape[1], weight.group
    if rows == 1:
        return int4_row(x, weight, bias, out)
    if rows == 0:
        return out
    tiles = _int4_tiles(rows, x.dtype)
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
        BYTES=_bytes_of_step(weight.group, tiles.inputs),
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


def _int8_tiles(rows: int, dtype: torch.dtype) -> Tiles:
    """Sizes of the 8-bit product for x with this number of rows.

    Few rows get small tiles, so that more programs read the weight.

    Tuned on an H200: docs/gpu.md.
    """
    if is_float32(dtype):
        return Tiles(16, 32, 32, 4, 3)
    if rows <= 16:
        return Tiles(16, 32, 128, 4, 4)
    return Tiles(64, 64, 256, 4, 3) if rows <= 64 else Tiles(128, 64, 128, 4, 3)


def _int4_tiles(rows: int, dtype: torch.dtype) -> Tiles:
    """Sizes of the 4-bit product for x with this number of rows. Few rows get small tiles, as in `_int8_tiles`."""
    if is_float32(dtype):
        return Tiles(16, 32, 64, 4, 3)
    if rows <= 16:
        return Tiles(16, 32, 128, 4, 4)
    return Tiles(64, 64, 128, 8, 4) if rows <= 64 else Tiles(128, 64, 128, 8, 3)


def _bytes_of_step(group: int, inputs: int) -> int:
    """Number of bytes of codes that one step of the loop processes for each output feature, in a 4-bit product.

    A step covers whole runs, and at most `inputs / 2` bytes, because a byte holds two codes. The lower codes of a step
    share one scale, and so do its upper codes.
    group: number of inputs that share a scale. inputs: number of inputs of a tile.
    """
    size = HALF_RUN
    while 4 * size <= inputs and group % (4 * size) == 0:
        size *= 2
    return size


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


@kernel(do_not_specialize=["rows"])
def _int8_kernel(
    x,
    codes,
    scales,
    bias,
    out,
    x_row,
    rows,
    columns,
    inputs,
    HAS_BIAS: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
    INPUT_TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    column = tl.program_id(1).to(tl.int64) * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
    is_row, is_column = row < rows, column < columns
    total = tl.zeros([COLUMN_TILE, ROW_TILE], tl.float32)
    for step in range(0, inputs, INPUT_TILE):
        place = step + tl.arange(0, INPUT_TILE)
        is_input = place < inputs
        a = tl.load(x + row[:, None] * x_row + place[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0)
        w = tl.load(
            codes + column[:, None] * inputs + place[None, :], mask=is_column[:, None] & is_input[None, :], other=0
        )
        total = tl.dot(w.to(a.dtype), tl.trans(a), total, input_precision="ieee")
    total *= tl.load(scales + column, mask=is_column, other=0.0)[:, None]
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
    total = tl.zeros([COLUMN_TILE, ROW_TILE], tl.float32)
    within = tl.arange(0, BYTES)
    # Input of the lower code of each byte.
    lower = within // HALF_RUN * (2 * HALF_RUN) + within % HALF_RUN
    for step in range(0, inputs, 2 * BYTES):
        is_input = step + lower < inputs
        packed = tl.load(
            codes + column[:, None] * (inputs // 2) + (step // 2 + within)[None, :],
            mask=is_column[:, None] & is_input[None, :],
            other=0,
        )
        for half in tl.static_range(2):
            place = step + lower + half * HALF_RUN
            a = tl.load(x + row[:, None] * x_row + place[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0)
            w = codes_to_float((packed.to(tl.int32) >> (4 * half)) & 15, 8)
            product = tl.dot(w.to(a.dtype), tl.trans(a), input_precision="ieee")
            group = column * groups + (step + half * HALF_RUN) // GROUP
            product *= tl.load(scales + group, mask=is_column, other=0.0).to(tl.float32)[:, None]
            if HAS_MINIMUMS:
                minimum = tl.load(minimums + group, mask=is_column, other=0.0).to(tl.float32)
                product -= minimum[:, None] * tl.sum(a.to(tl.float32), 1)[None, :]
            total += product
    _store(total, bias, out, row, column, rows, columns, HAS_BIAS)
