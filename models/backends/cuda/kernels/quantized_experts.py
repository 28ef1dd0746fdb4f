"""Products of a mixture of experts with weights of 8 or 4 bits, which are dequantised tile by tile."""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.codes import CODE_FACTOR
from models.backends.cuda.kernels.expert_epilogue import EpilogueSettings, combine
from models.backends.cuda.kernels.expert_tiles import ExpertTiles
from models.backends.cuda.kernels.launch import SMALLEST_TILE, is_float32, kernel
from models.backends.cuda.kernels.matrices import HALF_RUN, ByteMatrix, Int4Matrix
from models.backends.cuda.kernels.quantized_linear import (
    byte_sums,
    bytes_of_step,
    inputs_of_step,
    int4_sums,
)


def multiply_pairs(
    x: Tensor,
    weight: ByteMatrix | Int4Matrix,
    bias: Tensor | None,
    tiles: ExpertTiles,
    out: Tensor,
    settings: EpilogueSettings,
) -> Tensor:
    """Multiply each pair by the weight of its expert. Returns `out`.

    x: [tokens, in] or [tokens * choices, in], contiguous. For a weight of 4 bits, `in` is a multiple of 64.
    weight: codes [experts, columns, in] or [experts, columns, in / 2], and scales [experts, columns, groups], all
        contiguous.
    bias: [experts, columns] or None. tiles: result of `group_by_expert`.
    out: [tokens * choices, width], contiguous, dtype of x: memory for the result.
    """
    pairs, columns = out.shape
    if pairs == 0:
        return out
    is_whole = weight.group >= x.shape[1]
    minimums = weight.minimums if isinstance(weight, Int4Matrix) else None
    has_few_pairs = tiles.tile == SMALLEST_TILE
    column_tile, input_tile = (32, 64) if is_float32(x.dtype) else (32 if has_few_pairs else 64, 128)
    if isinstance(weight, ByteMatrix):
        input_tile = min(input_tile, 32) if is_float32(x.dtype) else input_tile
        input_tile = input_tile if is_whole else inputs_of_step(weight.group, input_tile)
    codes, step = weight.kind if isinstance(weight, ByteMatrix) else "", bytes_of_step(weight.group, input_tile)
    # So few numbers are loaded by fewer threads, 16 bytes each.
    is_small = has_few_pairs and not codes and step == HALF_RUN
    _pairs_kernel[tiles.tile_experts.shape[0], -(-columns // column_tile)](
        x,
        weight.codes,
        weight.scales,
        weight.scales if minimums is None else minimums,
        weight.scales if bias is None else bias,
        out,
        tiles.order,
        tiles.tile_experts,
        tiles.tile_starts,
        tiles.tile_ends,
        columns,
        x.shape[1],
        weight.scales.shape[2],
        settings.up_offset,
        PAIRS_PER_ROW=pairs // x.shape[0],
        ACTIVATION=settings.activation or "",
        GATED=settings.gated,
        LIMIT=settings.limit or 0.0,
        HAS_BIAS=bias is not None,
        HAS_MINIMUMS=minimums is not None,
        CODES=codes,
        FACTOR=CODE_FACTOR[codes],
        GROUP=0 if is_whole and codes else weight.group,
        BYTES=step,
        HALF_RUN=HALF_RUN,
        PAIR_TILE=tiles.tile,
        COLUMN_TILE=column_tile,
        INPUT_TILE=input_tile,
        num_warps=2 if is_small else 4,
        enable_fp_fusion=True,
        num_stages=3,
    )
    return out


@kernel(do_not_specialize=["tile_experts", "tile_starts", "tile_ends"])
def _pairs_kernel(
    x,
    codes,
    scales,
    minimums,
    bias,
    out,
    order,
    tile_experts,
    tile_starts,
    tile_ends,
    columns,
    inputs,
    groups,
    up_offset,
    PAIRS_PER_ROW: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    LIMIT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    CODES: tl.constexpr,
    FACTOR: tl.constexpr,
    GROUP: tl.constexpr,
    BYTES: tl.constexpr,
    HALF_RUN: tl.constexpr,
    PAIR_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
    INPUT_TILE: tl.constexpr,
):
    """Multiply a tile of pairs by some output features of the tile's expert. With GATED, of its gate and its up."""
    tile = tl.program_id(0)
    start = tl.load(tile_starts + tile)
    end = tl.load(tile_ends + tile)
    if start >= end:
        return
    expert = tl.load(tile_experts + tile).to(tl.int64)
    places = start + tl.arange(0, PAIR_TILE)
    is_pair = places < end
    pair = tl.load(order + places, mask=is_pair, other=0).to(tl.int64)
    x_rows = x + pair // PAIRS_PER_ROW * inputs
    column = tl.program_id(1) * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
    is_column = column < columns
    first_feature = expert * (columns * 2 if GATED else columns)
    feature = first_feature + column
    if CODES != "":
        total = byte_sums(
            x_rows, is_pair, codes, scales, feature, is_column, inputs, groups, CODES, FACTOR, GROUP, PAIR_TILE,
            COLUMN_TILE, INPUT_TILE,
        )  # fmt: skip
    else:
        total = int4_sums(
            x_rows, is_pair, codes, scales, minimums, feature, is_column, inputs, groups, GROUP, HAS_MINIMUMS, BYTES,
            HALF_RUN, PAIR_TILE, COLUMN_TILE,
        )  # fmt: skip
    up_total = total
    if GATED:
        feature += columns
        if CODES != "":
            up_total = byte_sums(
                x_rows, is_pair, codes, scales, feature, is_column, inputs, groups, CODES, FACTOR, GROUP, PAIR_TILE,
                COLUMN_TILE, INPUT_TILE,
            )  # fmt: skip
        else:
            up_total = int4_sums(
                x_rows, is_pair, codes, scales, minimums, feature, is_column, inputs, groups, GROUP, HAS_MINIMUMS,
                BYTES, HALF_RUN, PAIR_TILE, COLUMN_TILE,
            )  # fmt: skip
    result = combine(
        tl.trans(total), tl.trans(up_total), bias + first_feature, column, columns, is_column, up_offset,
        out.dtype.element_ty, ACTIVATION, GATED, LIMIT, HAS_BIAS,
    )  # fmt: skip
    tl.store(out + pair[:, None] * columns + column[None, :], result, mask=is_pair[:, None] & is_column[None, :])
