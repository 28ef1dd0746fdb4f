"""Computes one tile of a matrix product with weights of 8 or 4 bits: sums for some rows and output features.

Rows are float numbers, or codes of 8 bits (`rounded_rows`). For float rows, the codes of the weight are converted to
float numbers in registers. For rows of codes, matrix instructions for 8-bit numbers multiply the codes of both and add
the products: the sums of a group of inputs are then exact integers (or float32 sums of fp8 numbers). In all cases the
sums of a group are multiplied by its scales and added in float32, in ascending order of the groups.
"""

from __future__ import annotations

import triton
import triton.language as tl

from models.backends.cuda.kernels.codes import code_numbers, codes_to_float
from models.backends.cuda.kernels.matrices import HALF_RUN


def bytes_of_step(group: int, inputs: int) -> int:
    """Number of code bytes per output feature in one step of the loop, for a weight of 4 bits.

    A step covers whole runs of `2 * HALF_RUN` inputs, and at most `inputs / 2` bytes, because a byte holds two codes.
    The lower codes of a step share one scale, and so do its upper codes.
    group: number of inputs that share a scale. inputs: number of inputs of a tile.
    """
    size = HALF_RUN
    while 4 * size <= inputs and group % (4 * size) == 0:
        size *= 2
    return size


def inputs_of_step(group: int, most: int) -> int:
    """Number of inputs in one step of the loop, for a weight of 8 bits with groups. These inputs share one scale.

    The largest power of two, up to `most`, that divides the group.
    """
    return min(most, group & -group)


@triton.jit
def quantized_sums(
    x_rows,
    x_scales,
    rest,
    is_row,
    codes,
    scales,
    minimums,
    feature,
    is_column,
    inputs,
    groups,
    CODES: tl.constexpr,
    FACTOR: tl.constexpr,
    TERMS: tl.constexpr,
    X_GROUP: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    BYTES: tl.constexpr,
    HALF_RUN: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
    INPUT_TILE: tl.constexpr,
):
    """Products of a tile of rows with some output features: [columns, rows], float32.

    x_rows: [rows], address of the first number, or code, of each row. is_row: which rows exist.
    x_scales: [rows], address of the first scale of each row, if rows are codes.
    rest: distance from the first to the second code of a number of x, in codes.
    codes, scales, minimums: addresses of the whole matrix. feature: [columns], index of each feature in it.
    is_column: which features exist. inputs, groups: number of inputs of a row, and of their groups with a scale.
    CODES: kind of the codes (`codes.CODE_FACTOR`); empty for 4 bits. FACTOR: factor of the converted codes.
    TERMS: how many codes each number of x has; 0 for float rows. X_GROUP: inputs of x that share a scale.
    GROUP: inputs of the matrix that share a scale; 0 for a whole row of 8-bit codes.
    HAS_MINIMUMS: whether 4-bit codes have minimums. BYTES, HALF_RUN: bytes of a step, and of half a run, for 4 bits.
    ROW_TILE, COLUMN_TILE: numbers of rows and features of the tile. INPUT_TILE: inputs of a step, for 8 bits.
    """
    if CODES == "":
        return _int4_sums(
            x_rows, x_scales, rest, is_row, codes, scales, minimums, feature, is_column, inputs, groups, TERMS,
            X_GROUP, GROUP, HAS_MINIMUMS, BYTES, HALF_RUN, ROW_TILE, COLUMN_TILE,
        )  # fmt: skip
    else:
        return _byte_sums(
            x_rows, x_scales, rest, is_row, codes, scales, feature, is_column, inputs, groups, CODES, FACTOR, TERMS,
            X_GROUP, GROUP, ROW_TILE, COLUMN_TILE, INPUT_TILE,
        )  # fmt: skip


@triton.jit
def _byte_sums(
    x_rows,
    x_scales,
    rest,
    is_row,
    codes,
    scales,
    feature,
    is_column,
    inputs,
    groups,
    CODES: tl.constexpr,
    FACTOR: tl.constexpr,
    TERMS: tl.constexpr,
    X_GROUP: tl.constexpr,
    GROUP: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
    INPUT_TILE: tl.constexpr,
):
    total = tl.zeros([COLUMN_TILE, ROW_TILE], tl.float32)
    for step in range(0, inputs, INPUT_TILE):
        place = step + tl.arange(0, INPUT_TILE)
        is_input = place < inputs
        x_place, x_mask = x_rows[:, None] + place[None, :], is_row[:, None] & is_input[None, :]
        a = tl.load(x_place, mask=x_mask, other=0)
        w = tl.load(
            codes + feature[:, None] * inputs + place[None, :], mask=is_column[:, None] & is_input[None, :], other=0
        )
        if TERMS == 0 and GROUP == 0:
            total = tl.dot(code_numbers(w, a.dtype, CODES), tl.trans(a), total, input_precision="ieee")
        else:
            if TERMS == 0:
                product = tl.dot(code_numbers(w, a.dtype, CODES), tl.trans(a), input_precision="ieee")
            elif CODES == "fp8":
                product = tl.dot(w.to(tl.float8e4nv, bitcast=True), tl.trans(a.to(tl.float8e4nv, bitcast=True)))
            else:
                sums = tl.dot(w, tl.trans(a))
                if TERMS == 2:
                    sums = sums * 128 + tl.dot(w, tl.trans(tl.load(x_place + rest, mask=x_mask, other=0)))
                product = sums.to(tl.float32)
            if TERMS > 0:
                product *= tl.load(x_scales + step // X_GROUP, mask=is_row, other=0.0)[None, :]
            if GROUP > 0:
                scale = tl.load(scales + feature * groups + step // GROUP, mask=is_column, other=0.0)
                product *= scale.to(tl.float32)[:, None]
            total += product
    if TERMS == 0:
        total *= FACTOR
    if GROUP == 0:
        total *= tl.load(scales + feature, mask=is_column, other=0.0).to(tl.float32)[:, None]
    return total


@triton.jit
def _int4_sums(
    x_rows,
    x_scales,
    rest,
    is_row,
    codes,
    scales,
    minimums,
    feature,
    is_column,
    inputs,
    groups,
    TERMS: tl.constexpr,
    X_GROUP: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    BYTES: tl.constexpr,
    HALF_RUN: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
):
    """`quantized_sums` for 4-bit codes, which become integers of 8 bits or float numbers without rounding."""
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
        x_mask = is_row[:, None] & is_input[None, :]
        for half in tl.static_range(2):
            x_place = x_rows[:, None] + (step + lower + half * HALF_RUN)[None, :]
            a = tl.load(x_place, mask=x_mask, other=0)
            if TERMS == 0:
                w = codes_to_float((packed.to(tl.int32) >> (4 * half)) & 15, 8)
                product = tl.dot(w.to(a.dtype), tl.trans(a), input_precision="ieee")
                x_sum = tl.sum(a.to(tl.float32), 1)
            else:
                w = ((packed >> (4 * half)) & 15).to(tl.int8) - 8
                sums, code_sum = tl.dot(w, tl.trans(a)), tl.sum(a.to(tl.int32), 1)
                if TERMS == 2:
                    second = tl.load(x_place + rest, mask=x_mask, other=0)
                    sums = sums * 128 + tl.dot(w, tl.trans(second))
                    code_sum = code_sum * 128 + tl.sum(second.to(tl.int32), 1)
                product, x_sum = sums.to(tl.float32), code_sum.to(tl.float32)
            group = feature * groups + (step + half * HALF_RUN) // GROUP
            product *= tl.load(scales + group, mask=is_column, other=0.0).to(tl.float32)[:, None]
            if HAS_MINIMUMS:
                minimum = tl.load(minimums + group, mask=is_column, other=0.0).to(tl.float32)
                product -= minimum[:, None] * x_sum[None, :]
            if TERMS > 0:
                product *= tl.load(x_scales + step // X_GROUP, mask=is_row, other=0.0)[None, :]
            total += product
    return total
