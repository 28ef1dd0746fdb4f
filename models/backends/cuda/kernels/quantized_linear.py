"""Products with weights of 8 or 4 bits, which are dequantised to the model's dtype in the tile."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.launch import is_float32, power_of_two

_RUN = 32
"""Inputs of half a run of 64: a byte holds codes of both halves."""


class Int8Matrix(NamedTuple):
    """`weight[o, i] = scales[o] * codes[o, i]`. codes: [out, in], int8, contiguous. scales: [out], float32."""

    codes: Tensor
    scales: Tensor


class Int4Matrix(NamedTuple):
    """`weight[o, i] = scales[o, i // group] * (code[o, i] - 8) - minimums[o, i // group]`, with codes from 0 to 15.

    codes: [out, in / 2], uint8, see `pack_int4`.
    scales: [out, groups], float16 or float32. minimums: likewise, or None.
    group: inputs that share a scale, a multiple of 32, or at least `in`. The last group of a row may be shorter.
    """

    codes: Tensor
    scales: Tensor
    minimums: Tensor | None
    group: int


def pack_int4(codes: Tensor) -> Tensor:
    """Pack codes from 0 to 15: [out, in], uint8 -> [out, in / 2], uint8. `in` is a multiple of 64.

    In each run of 64 inputs, byte i holds input i in its lower half and input i + 32 in its upper half.
    """
    runs = codes.unflatten(1, (-1, 2, _RUN))
    packed: Tensor = (runs[:, :, 0] | runs[:, :, 1] << 4).flatten(1)
    return packed


def int8_linear(x: Tensor, weight: Int8Matrix, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """`x W^T + b`. x: [rows, in], float16, bfloat16 or float32, rows contiguous. bias: [out], dtype of x, or None.

    out: [rows, out], contiguous: memory for the result; None for new memory.
    Returns [rows, out], dtype of x.
    """
    rows, columns, out = len(x), len(weight.codes), _result(x, weight.codes, out)
    if rows == 0:
        return out
    row_tile, column_tile, input_tile = _tiles(rows, x.dtype)
    _int8_kernel[-(-rows // row_tile), -(-columns // column_tile)](
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
        ROW_TILE=row_tile,
        COLUMN_TILE=column_tile,
        INPUT_TILE=input_tile,
        num_warps=4,
        enable_fp_fusion=True,
        num_stages=3,
    )
    return out


def int4_linear(x: Tensor, weight: Int4Matrix, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """`x W^T + b`, arguments as for `int8_linear`."""
    rows, columns, out = len(x), len(weight.codes), _result(x, weight.codes, out)
    assert x.shape[1] == 2 * weight.codes.shape[1], (x.shape, weight.codes.shape)
    assert weight.group % _RUN == 0 or weight.group >= x.shape[1], weight.group
    if rows == 0:
        return out
    row_tile, column_tile, _ = _tiles(rows, x.dtype)
    _int4_kernel[-(-rows // row_tile), -(-columns // column_tile)](
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
        ROW_TILE=row_tile,
        COLUMN_TILE=column_tile,
        RUN=_RUN,
        RUNS=4 if row_tile <= 32 else 1,
        num_warps=2 if row_tile <= 32 else 4,
        enable_fp_fusion=True,
        num_stages=4,
    )
    return out


def _result(x: Tensor, codes: Tensor, out: Tensor | None) -> Tensor:
    return x.new_empty(len(x), len(codes)) if out is None else out


def _tiles(rows: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Rows, output features and inputs of a tile. Few rows have small tiles, so that more programs read the weight."""
    if is_float32(dtype):
        return 16, 32, 32
    row_tile = min(64, max(16, power_of_two(rows)))
    return row_tile, 32 if row_tile <= 32 else 64, 128 if row_tile <= 32 else 64


@triton.jit
def _store(total, bias, out, row, column, rows, columns, HAS_BIAS: tl.constexpr):
    """Add the bias to a tile of the result and store it. row, column: its places in the result."""
    is_column = column < columns
    if HAS_BIAS:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    place = row[:, None] * columns + column[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=(row < rows)[:, None] & is_column[None, :])


@triton.jit(do_not_specialize=["rows"])
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
    total = tl.zeros([ROW_TILE, COLUMN_TILE], tl.float32)
    for step in range(0, inputs, INPUT_TILE):
        place = step + tl.arange(0, INPUT_TILE)
        is_input = place < inputs
        a = tl.load(x + row[:, None] * x_row + place[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0)
        w = tl.load(
            codes + column[:, None] * inputs + place[None, :], mask=is_column[:, None] & is_input[None, :], other=0
        )
        total = tl.dot(a, tl.trans(w.to(a.dtype)), total, input_precision="ieee")
    total *= tl.load(scales + column, mask=is_column, other=0.0)[None, :]
    _store(total, bias, out, row, column, rows, columns, HAS_BIAS)


@triton.jit(do_not_specialize=["rows"])
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
    RUN: tl.constexpr,
    RUNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    column = tl.program_id(1).to(tl.int64) * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
    is_row, is_column = row < rows, column < columns
    row_inputs, column_inputs = tl.where(is_row, inputs, 0), tl.where(is_column, inputs, 0)
    total = tl.zeros([ROW_TILE, COLUMN_TILE], tl.float32)
    within = tl.arange(0, RUN)
    # Several runs per step, so that enough bytes are on their way.
    for step in range(0, inputs, 2 * RUN * RUNS):
        for run in tl.static_range(RUNS):
            start = step + run * 2 * RUN
            has_weights = start < column_inputs
            place = (start // 2 + within)[None, :]
            packed = tl.load(codes + column[:, None] * (inputs // 2) + place, mask=has_weights[:, None], other=0)
            for half in tl.static_range(2):
                first = start + half * RUN
                is_input = first < row_inputs
                a = tl.load(x + row[:, None] * x_row + (first + within)[None, :], mask=is_input[:, None], other=0.0)
                group = column * groups + first // GROUP
                scale = tl.load(scales + group, mask=has_weights, other=0.0).to(tl.float32)
                code = (packed >> (4 * half)) & 15
                w = (code.to(tl.float32) - 8.0) * scale[:, None]
                if HAS_MINIMUMS:
                    w -= tl.load(minimums + group, mask=has_weights, other=0.0).to(tl.float32)[:, None]
                total = tl.dot(a, tl.trans(w.to(a.dtype)), total, input_precision="ieee")
    _store(total, bias, out, row, column, rows, columns, HAS_BIAS)
