"""Products of rows with a float weight whose bits do not depend on the number of rows or on the place of a row.

The inputs are divided into parts of a fixed size. Each part is summed by the same matrix instructions, in tiles whose
sizes depend on the dtype alone, and the sums of the parts are added in ascending order, in float32. Where a product has
too few tiles to occupy a device, each part is summed by another program and a second kernel adds the sums of the parts.
Both ways add the same numbers in the same order.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.launch import is_float32, kernel
from models.backends.cuda.kernels.quantized_linear import Tiles


def fixed_order_linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """`x W^T + b` with sums in float32. Returns `out`.

    x: [rows, in], the last dimension contiguous. weight: [out, in], contiguous, dtype of x. bias: [out] or None, any
        float dtype.
    out: [rows, out], contiguous, any float dtype: memory for the result.
    """
    (rows, inputs), columns = x.shape, weight.shape[0]
    if rows == 0 or columns == 0:
        return out
    tiles = _tiles(x.dtype)
    grid = -(-rows // tiles.rows), -(-columns // tiles.columns)
    parts = max(1, -(-inputs // _PART_INPUTS))
    is_divided = parts > 1 and grid[0] * grid[1] < _ENOUGH_PROGRAMS
    sums = torch.empty(parts, rows, columns, device=x.device) if is_divided else out
    _product_kernel[(*grid, parts if is_divided else 1)](
        x,
        weight,
        weight if bias is None else bias,
        sums,
        x.stride(0),
        rows,
        columns,
        inputs,
        parts,
        HAS_BIAS=bias is not None,
        IS_DIVIDED=is_divided,
        PART_INPUTS=_PART_INPUTS,
        ROW_TILE=tiles.rows,
        COLUMN_TILE=tiles.columns,
        INPUT_TILE=tiles.inputs,
        num_warps=tiles.warps,
        enable_fp_fusion=True,
        num_stages=tiles.stages,
    )
    if is_divided:
        _sum_kernel[rows, -(-columns // _SUM_TILE)](
            sums,
            weight if bias is None else bias,
            out,
            columns,
            parts,
            HAS_BIAS=bias is not None,
            TILE=_SUM_TILE,
            num_warps=4,
            enable_fp_fusion=True,
        )
    return out


_PART_INPUTS = 1024
"""Number of inputs of a part. Products with few outputs, such as the output projection of attention, then have enough
programs: 4,096 outputs and inputs give 128. Changing it changes the bits of all products."""
_ENOUGH_PROGRAMS = 128
"""A product with fewer tiles computes each part in a separate program. This changes no bit of the result."""
_SUM_TILE = 1024
"""Number of outputs of one row that a program sums."""


def _tiles(dtype: torch.dtype) -> Tiles:
    """Choose the sizes of a product. They must depend on the dtype alone, because other sizes may give other bits.

    Tiles in half precision have 64 rows, also in products of fewer rows: the arithmetic of 64 rows takes less time than
    reading the weight.
    """
    return Tiles(16, 32, 32, 4, 3) if is_float32(dtype) else Tiles(64, 128, 64, 8, 3)


@kernel(do_not_specialize=["rows"])
def _product_kernel(
    x,
    weight,
    bias,
    out,
    x_row,
    rows,
    columns,
    inputs,
    parts,
    HAS_BIAS: tl.constexpr,
    IS_DIVIDED: tl.constexpr,
    PART_INPUTS: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
    INPUT_TILE: tl.constexpr,
):
    """Multiply a tile of rows by a tile of output features.

    out: the result; with IS_DIVIDED, memory for the sums of the parts, [parts, rows, columns].
    """
    row = tl.program_id(0).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    column = tl.program_id(1).to(tl.int64) * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
    is_row, is_column = row < rows, column < columns
    first, end = 0, parts
    if IS_DIVIDED:
        first, end = tl.program_id(2), tl.program_id(2) + 1
    total = tl.zeros([COLUMN_TILE, ROW_TILE], tl.float32)
    for part in range(first, end):
        sums = tl.zeros([COLUMN_TILE, ROW_TILE], tl.float32)
        for step in range(part * PART_INPUTS, tl.minimum((part + 1) * PART_INPUTS, inputs), INPUT_TILE):
            place = step + tl.arange(0, INPUT_TILE)
            is_input = place < inputs
            a = tl.load(x + row[:, None] * x_row + place[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0)
            w = tl.load(
                weight + column[:, None] * inputs + place[None, :],
                mask=is_column[:, None] & is_input[None, :],
                other=0.0,
            )
            sums = tl.dot(w, tl.trans(a), sums, input_precision="ieee")
        total += sums
    if IS_DIVIDED:
        out += tl.program_id(2).to(tl.int64) * rows * columns
    elif HAS_BIAS:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
    place = row[:, None] * columns + column[None, :]
    tl.store(out + place, tl.trans(total).to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@kernel(do_not_specialize=["parts"])
def _sum_kernel(sums, bias, out, columns, parts, HAS_BIAS: tl.constexpr, TILE: tl.constexpr):
    """Add the sums of the parts of one row in ascending order."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < columns
    total = tl.zeros([TILE], tl.float32)
    for part in range(parts):
        place = (part * tl.num_programs(0) + row) * columns + column
        total += tl.load(sums + place, mask=inside, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * columns + column, total.to(out.dtype.element_ty), mask=inside)
