"""Products of a single row with a weight. Reading the weight takes most of their time.

Each program computes a few output features.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.codes import CODE_FACTOR, code_numbers, codes_to_float
from models.backends.cuda.kernels.launch import kernel
from models.backends.cuda.kernels.matrices import HALF_RUN, ByteMatrix, Int4Matrix


def dense_row(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """`x W^T + b` with sums in float32. Returns `out`.

    x: [1, in]. weight: [out, in]. bias: [out] or None. All are contiguous and have float dtypes.
    out: [1, out], contiguous, any float dtype: memory for the result.
    """
    return _multiply(x, weight, None, bias, out)


def byte_row(x: Tensor, weight: ByteMatrix, bias: Tensor | None, out: Tensor) -> Tensor:
    """`x W^T + b` with a weight of 8 bits and sums in float32. Returns `out`.

    x: [1, in]. bias: [out] or None. Both are contiguous and have float dtypes.
    out: [1, out], contiguous, any float dtype: memory for the result.
    """
    columns, inputs = weight.codes.shape
    if weight.group >= inputs:
        return _multiply(x, weight.codes, weight, bias, out)
    if columns:
        _group_row_kernel[(-(-columns // _COLUMNS),)](
            x,
            weight.codes,
            weight.scales,
            x if bias is None else bias,
            out,
            columns,
            inputs,
            weight.scales.shape[1],
            CODES=weight.kind,
            FACTOR=CODE_FACTOR[weight.kind],
            GROUP=weight.group,
            HAS_BIAS=bias is not None,
            COLUMNS=_COLUMNS,
            RUNS=_INPUT_TILE // HALF_RUN,
            RUN=HALF_RUN,
            num_warps=2,
            enable_fp_fusion=True,
        )
    return out


def _multiply(x: Tensor, weight: Tensor, matrix: ByteMatrix | None, bias: Tensor | None, out: Tensor) -> Tensor:
    """`x W^T + b`, for a float weight or for a weight of 8 bits with one scale per output feature. Returns `out`.

    weight: [out, in]: the float weight, or the codes of `matrix`.
    matrix: the weight of 8 bits; None for a float weight.
    x: [1, in]. bias: [out] or None. Both are contiguous and have float dtypes.
    out: [1, out], contiguous, any float dtype: memory for the result.
    """
    columns, inputs = weight.shape
    kind = "" if matrix is None else matrix.kind
    if columns:
        _row_kernel[(-(-columns // _COLUMNS),)](
            x,
            weight,
            x if matrix is None else matrix.scales,
            x if bias is None else bias,
            out,
            columns,
            inputs,
            CODES=kind,
            FACTOR=CODE_FACTOR[kind],
            HAS_BIAS=bias is not None,
            COLUMNS=_COLUMNS,
            INPUT_TILE=_INPUT_TILE,
            num_warps=4 if matrix is None else 2,
            enable_fp_fusion=True,
        )
    return out


def int4_row(x: Tensor, weight: Int4Matrix, bias: Tensor | None, out: Tensor) -> Tensor:
    """`x W^T + b` with a weight of 4 bits and sums in float32. Returns `out`.

    x: [1, in]. bias: [out] or None. Both are contiguous and have float dtypes.
    out: [1, out], contiguous, any float dtype: memory for the result.
    """
    columns, inputs = weight.codes.shape[0], x.shape[1]
    if columns:
        _int4_row_kernel[(-(-columns // _COLUMNS),)](
            x,
            weight.codes,
            weight.scales,
            weight.scales if weight.minimums is None else weight.minimums,
            x if bias is None else bias,
            out,
            columns,
            inputs,
            weight.scales.shape[1],
            GROUP=weight.group,
            HAS_MINIMUMS=weight.minimums is not None,
            HAS_BIAS=bias is not None,
            COLUMNS=_COLUMNS,
            RUNS=_RUNS,
            HALF_RUN=HALF_RUN,
            num_warps=2,
            enable_fp_fusion=True,
        )
    return out


_COLUMNS = 2
"""Number of output features of a program."""
_INPUT_TILE = 1024
"""Number of inputs that a program multiplies at once."""
_RUNS = 16
"""Number of runs that a program multiplies at once, for weights of 4 bits. A run has 64 inputs."""


@kernel()
def _row_kernel(
    x,
    weight,
    scales,
    bias,
    out,
    columns,
    inputs,
    CODES: tl.constexpr,
    FACTOR: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUT_TILE: tl.constexpr,
):
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < columns
    total = tl.zeros([COLUMNS, INPUT_TILE], tl.float32)
    for step in range(0, inputs, INPUT_TILE):
        place = step + tl.arange(0, INPUT_TILE)
        is_input = place < inputs
        a = tl.load(x + place, mask=is_input, other=0.0).to(tl.float32)
        w = tl.load(
            weight + column[:, None] * inputs + place[None, :],
            mask=is_column[:, None] & is_input[None, :],
            other=0,
        )
        total += code_numbers(w, tl.float32, CODES).to(tl.float32) * a[None, :]
    result = tl.sum(total, 1)
    if CODES != "":
        result *= tl.load(scales + column, mask=is_column, other=0.0).to(tl.float32) * FACTOR
    if HAS_BIAS:
        result += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + column, result.to(out.dtype.element_ty), mask=is_column)


@kernel()
def _group_row_kernel(
    x,
    codes,
    scales,
    bias,
    out,
    columns,
    inputs,
    groups,
    CODES: tl.constexpr,
    FACTOR: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    COLUMNS: tl.constexpr,
    RUNS: tl.constexpr,
    RUN: tl.constexpr,
):
    """Multiply by a weight whose groups are shorter than a row. A run of inputs has one scale."""
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < columns
    total = tl.zeros([COLUMNS, RUNS, RUN], tl.float32)
    for step in range(0, inputs, RUN * RUNS):
        first = step + tl.arange(0, RUNS) * RUN
        place = first[:, None] + tl.arange(0, RUN)[None, :]
        is_input = place < inputs
        inside = is_column[:, None, None] & is_input[None, :, :]
        w = tl.load(codes + (column * inputs)[:, None, None] + place[None, :, :], mask=inside, other=0)
        a = tl.load(x + place, mask=is_input, other=0.0).to(tl.float32)[None, :, :]
        scale = tl.load(
            scales + (column * groups)[:, None] + (first // GROUP)[None, :],
            mask=is_column[:, None] & (first < inputs)[None, :],
            other=0.0,
        ).to(tl.float32)
        total += code_numbers(w, tl.float32, CODES) * scale[:, :, None] * a
    result = tl.sum(tl.sum(total, 2), 1) * FACTOR
    if HAS_BIAS:
        result += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + column, result.to(out.dtype.element_ty), mask=is_column)


@kernel()
def _int4_row_kernel(
    x,
    codes,
    scales,
    minimums,
    bias,
    out,
    columns,
    inputs,
    groups,
    GROUP: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    COLUMNS: tl.constexpr,
    RUNS: tl.constexpr,
    HALF_RUN: tl.constexpr,
):
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < columns
    total = tl.zeros([COLUMNS, RUNS, HALF_RUN], tl.float32)
    within = tl.arange(0, HALF_RUN)[None, :]
    for step in range(0, inputs, 2 * HALF_RUN * RUNS):
        first = step + tl.arange(0, RUNS) * (2 * HALF_RUN)
        is_run = first < inputs
        is_weight = is_column[:, None] & is_run[None, :]
        place = (column * (inputs // 2))[:, None, None] + ((first // 2)[:, None] + within)[None, :, :]
        packed = tl.load(codes + place, mask=is_weight[:, :, None], other=0).to(tl.int32)
        for half in tl.static_range(2):
            start = first + half * HALF_RUN
            a = tl.load(x + start[:, None] + within, mask=is_run[:, None], other=0.0).to(tl.float32)[None, :, :]
            group = (column * groups)[:, None] + (start // GROUP)[None, :]
            scale = tl.load(scales + group, mask=is_weight, other=0.0).to(tl.float32)[:, :, None]
            w = codes_to_float((packed >> (4 * half)) & 15, 8) * scale
            if HAS_MINIMUMS:
                w -= tl.load(minimums + group, mask=is_weight, other=0.0).to(tl.float32)[:, :, None]
            total += w * a
    result = tl.sum(tl.sum(total, 2), 1)
    if HAS_BIAS:
        result += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + column, result.to(out.dtype.element_ty), mask=is_column)
