"""Products of rounded rows with weights of 8 or 4 bits, summed by the matrix instructions for 8-bit numbers.

The weight is not converted to float, which takes longer than the product once there are many rows. Rows are rounded
with a scale for each group of 128 inputs. With int8 and 4-bit weights, a number of a row becomes one code of 8 bits, or
two codes that have 15 bits together. With fp8 weights it becomes an fp8 number; this needs compute capability 8.9.
The sums of a group are exact integers (or float32 sums of fp8 numbers). They are multiplied by the scales of the group
and added in float32, in ascending order of the groups.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.codes import fp8_bits, round_to_even
from models.backends.cuda.kernels.launch import kernel
from models.backends.cuda.kernels.matrices import HALF_RUN, ByteMatrix, Int4Matrix
from models.backends.cuda.kernels.quantized_linear import bytes_of_step, inputs_of_step

GROUP = 128
"""Number of inputs of a row that share a scale."""


class RoundedRows(NamedTuple):
    """Rows of a product: `x[r, i] = scales[r, i // GROUP] * (128 * codes[0, r, i] + codes[1, r, i])`.

    With one term it is `scales * codes[0]`.

    codes: [terms, rows, in], int8; or uint8 with the bits of fp8 numbers, which have one term.
    scales: [rows, groups], float32; NaN for a group with a number that is not finite.
    """

    codes: Tensor
    scales: Tensor


LARGEST = {("int8", 1): 127.0, ("int8", 2): 16256.0, ("fp8", 1): 448.0}
"""Largest multiple of a scale, by kind and number of terms. Two terms: 127 * 128."""


def round_rows(x: Tensor, kind: str, terms: int = 1) -> RoundedRows:
    """Round rows as `models.backends.torch.quantization.round_rows` does.

    x: [rows, in], float16, bfloat16 or float32, the last dimension contiguous.
    kind: "int8" or "fp8". terms: number of codes per number.
    """
    rows, inputs = x.shape
    groups = -(-inputs // GROUP)
    codes = torch.empty(terms, rows, inputs, dtype=torch.int8 if kind == "int8" else torch.uint8, device=x.device)
    scales = torch.empty(rows, groups, device=x.device)
    if rows:
        _round_kernel[rows, -(-groups // _GROUPS)](
            x,
            codes,
            scales,
            x.stride(0),
            inputs,
            groups,
            KIND=kind,
            TERMS=terms,
            LARGEST=LARGEST[kind, terms],
            GROUPS=_GROUPS,
            GROUP=GROUP,
            num_warps=4,
            # Rounding adds a large number to a product. Fused, both would be rounded once.
            enable_fp_fusion=False,
        )
    return RoundedRows(codes, scales)


_GROUPS = 8
"""Number of groups that a program rounds."""


@kernel()
def _round_kernel(
    x,
    codes,
    scales,
    x_row,
    inputs,
    groups,
    KIND: tl.constexpr,
    TERMS: tl.constexpr,
    LARGEST: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    place = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    is_input = place < inputs
    wide = tl.load(x + row * x_row + place, mask=is_input, other=0.0).to(tl.float32)
    is_finite = tl.sum((wide - wide != 0.0).to(tl.int32), 1) == 0
    wide = tl.where(is_finite[:, None], wide, 0.0)
    scale = tl.div_rn(tl.max(tl.abs(wide), 1), LARGEST)
    inverse = tl.where(scale > 1e-30, tl.div_rn(1.0, tl.where(scale > 1e-30, scale, 1.0)), 0.0)
    multiples = wide * inverse[:, None]
    tl.store(scales + row * groups + group, tl.where(is_finite, scale, float("nan")), mask=group < groups)
    target = codes + row * inputs + place
    dtype = codes.dtype.element_ty
    if KIND == "fp8":
        tl.store(target, fp8_bits(multiples).to(dtype), mask=is_input)
    else:
        number = round_to_even(multiples)
        if TERMS == 2:
            high = round_to_even(number * 0.0078125)
            rest = target + tl.num_programs(0).to(tl.int64) * inputs
            tl.store(rest, (number - high * 128.0).to(tl.int32).to(dtype), mask=is_input)
            number = high
        tl.store(target, number.to(tl.int32).to(dtype), mask=is_input)


def rounded_byte_linear(x: RoundedRows, weight: ByteMatrix, bias: Tensor | None, out: Tensor) -> Tensor:
    """`x W^T + b`. Returns `out`.

    x: int8 for a weight of int8, else fp8. bias: [out], any float dtype, or None.
    out: [rows, out], contiguous, any float dtype: memory for the result.
    """
    terms, rows, inputs = x.codes.shape
    columns = weight.codes.shape[0]
    is_whole = weight.group >= inputs
    if rows and columns:
        _byte_kernel[-(-rows // _ROWS), -(-columns // _COLUMNS)](
            x.codes,
            x.scales,
            weight.codes,
            weight.scales,
            weight.scales if bias is None else bias,
            out,
            rows,
            columns,
            inputs,
            x.scales.shape[1],
            weight.scales.shape[1],
            CODES=weight.kind,
            TERMS=terms,
            X_GROUP=GROUP,
            GROUP=0 if is_whole else weight.group,
            HAS_BIAS=bias is not None,
            ROW_TILE=_ROWS,
            COLUMN_TILE=_COLUMNS,
            INPUT_TILE=GROUP if is_whole else inputs_of_step(weight.group, GROUP),
            num_warps=8,
            enable_fp_fusion=True,
            num_stages=3,
        )
    return out


def rounded_int4_linear(x: RoundedRows, weight: Int4Matrix, bias: Tensor | None, out: Tensor) -> Tensor:
    """`x W^T + b`, arguments as for `rounded_byte_linear`; x: int8, the number of inputs a multiple of 64."""
    terms, rows, inputs = x.codes.shape
    columns, step = weight.codes.shape[0], bytes_of_step(weight.group, GROUP)
    if rows and columns:
        _int4_kernel[-(-rows // _ROWS), -(-columns // _INT4_COLUMNS)](
            x.codes,
            x.scales,
            weight.codes,
            weight.scales,
            weight.scales if weight.minimums is None else weight.minimums,
            weight.scales if bias is None else bias,
            out,
            rows,
            columns,
            inputs,
            x.scales.shape[1],
            weight.scales.shape[1],
            TERMS=terms,
            X_GROUP=GROUP,
            GROUP=weight.group,
            HAS_MINIMUMS=weight.minimums is not None,
            HAS_BIAS=bias is not None,
            ROW_TILE=_ROWS,
            COLUMN_TILE=_INT4_COLUMNS,
            HALF_RUN=HALF_RUN,
            BYTES=step,
            num_warps=4 if step == HALF_RUN else 8,
            enable_fp_fusion=True,
            num_stages=3,
        )
    return out


_ROWS, _COLUMNS, _INT4_COLUMNS = 64, 128, 64
"""Rows of a tile, and its output features with weights of 8 and of 4 bits. Compiled, and not tuned on a device."""


@triton.jit
def _store(total, bias, out, row, column, rows, columns, HAS_BIAS: tl.constexpr):
    """Add the bias to a tile, [columns, rows], and store it. row, column: indices of its rows and columns."""
    is_column = column < columns
    if HAS_BIAS:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
    place = row[:, None] * columns + column[None, :]
    tl.store(out + place, tl.trans(total).to(out.dtype.element_ty), mask=(row < rows)[:, None] & is_column[None, :])


@kernel(do_not_specialize=["rows"])
def _byte_kernel(
    x,
    x_scales,
    codes,
    scales,
    bias,
    out,
    rows,
    columns,
    inputs,
    x_groups,
    groups,
    CODES: tl.constexpr,
    TERMS: tl.constexpr,
    X_GROUP: tl.constexpr,
    GROUP: tl.constexpr,
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
        x_mask = is_row[:, None] & is_input[None, :]
        x_place = x + row[:, None] * inputs + place[None, :]
        a = tl.load(x_place, mask=x_mask, other=0)
        w = tl.load(
            codes + column[:, None] * inputs + place[None, :], mask=is_column[:, None] & is_input[None, :], other=0
        )
        if CODES == "fp8":
            w, a = w.to(tl.float8e4nv, bitcast=True), a.to(tl.float8e4nv, bitcast=True)
            product = tl.dot(w, tl.trans(a))
        else:
            sums = tl.dot(w, tl.trans(a))
            if TERMS == 2:
                rest = tl.load(x_place + rows.to(tl.int64) * inputs, mask=x_mask, other=0)
                sums = sums * 128 + tl.dot(w, tl.trans(rest))
            product = sums.to(tl.float32)
        x_scale = tl.load(x_scales + row * x_groups + step // X_GROUP, mask=is_row, other=0.0)
        product *= x_scale[None, :]
        if GROUP > 0:
            product *= tl.load(scales + column * groups + step // GROUP, mask=is_column, other=0.0).to(tl.float32)[
                :, None
            ]
        total += product
    if GROUP == 0:
        total *= tl.load(scales + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
    _store(total, bias, out, row, column, rows, columns, HAS_BIAS)


@kernel(do_not_specialize=["rows"])
def _int4_kernel(
    x,
    x_scales,
    codes,
    scales,
    minimums,
    bias,
    out,
    rows,
    columns,
    inputs,
    x_groups,
    groups,
    TERMS: tl.constexpr,
    X_GROUP: tl.constexpr,
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
        x_scale = tl.load(x_scales + row * x_groups + step // X_GROUP, mask=is_row, other=0.0)
        x_mask = is_row[:, None] & is_input[None, :]
        for half in tl.static_range(2):
            x_place = x + row[:, None] * inputs + (step + lower + half * HALF_RUN)[None, :]
            a = tl.load(x_place, mask=x_mask, other=0)
            w = ((packed >> (4 * half)) & 15).to(tl.int8) - 8
            sums = tl.dot(w, tl.trans(a))
            x_sum = tl.sum(a.to(tl.int32), 1)
            if TERMS == 2:
                rest = tl.load(x_place + rows.to(tl.int64) * inputs, mask=x_mask, other=0)
                sums = sums * 128 + tl.dot(w, tl.trans(rest))
                x_sum = x_sum * 128 + tl.sum(rest.to(tl.int32), 1)
            group = column * groups + (step + half * HALF_RUN) // GROUP
            product = sums.to(tl.float32) * tl.load(scales + group, mask=is_column, other=0.0).to(tl.float32)[:, None]
            if HAS_MINIMUMS:
                minimum = tl.load(minimums + group, mask=is_column, other=0.0).to(tl.float32)
                product -= minimum[:, None] * x_sum.to(tl.float32)[None, :]
            total += product * x_scale[None, :]
    _store(total, bias, out, row, column, rows, columns, HAS_BIAS)
