"""Products of a mixture of experts whose weights have 8 or 4 bits."""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.codes import CODE_FACTOR
from models.backends.cuda.kernels.expert_epilogue import EpilogueSettings, combine
from models.backends.cuda.kernels.expert_tiles import ExpertTiles, pairs_of_tile
from models.backends.cuda.kernels.launch import SMALLEST_TILE, is_float32, kernel
from models.backends.cuda.kernels.matrices import HALF_RUN, ByteMatrix, Int4Matrix
from models.backends.cuda.kernels.quantized_linear import SumSettings, Tiles
from models.backends.cuda.kernels.quantized_sums import bytes_of_step, quantized_sums
from models.backends.cuda.kernels.rounded_rows import GROUP, RoundedRows


def multiply_pairs(
    x: Tensor | RoundedRows,
    weight: ByteMatrix | Int4Matrix,
    bias: Tensor | None,
    tiles: ExpertTiles,
    out: Tensor,
    settings: EpilogueSettings,
) -> Tensor:
    """Multiply each pair by the weight of its expert. Returns `out`.

    x: [tokens, in], one row per token, or [tokens * choices, in], one row per pair. Contiguous, or as rounded rows. For
        a weight of 4 bits, `in` is a multiple of 64.
    weight: codes [experts, columns, in] or [experts, columns, in / 2], and scales [experts, columns, groups], all
        contiguous.
    bias: [experts, columns] or None. tiles: result of `group_by_expert`.
    out: [tokens * choices, width], contiguous, float: memory for the result.
    """
    pairs, columns = out.shape
    if pairs == 0:
        return out
    numbers = x if isinstance(x, Tensor) else x.codes[0]
    sums, sizes = SumSettings.of(x, weight), _tiles(x, weight, tiles.tile)
    minimums = weight.minimums if isinstance(weight, Int4Matrix) else None
    _pairs_kernel[tiles.tile_experts.shape[0], -(-columns // sizes.columns)](
        numbers,
        weight.scales if isinstance(x, Tensor) else x.scales,
        weight.codes,
        weight.scales,
        weight.scales if minimums is None else minimums,
        weight.scales if bias is None else bias,
        out,
        tiles.order,
        tiles.tile_experts,
        tiles.tile_starts,
        tiles.tile_ends,
        numbers.shape[0],
        columns,
        numbers.shape[1],
        1 if isinstance(x, Tensor) else x.scales.shape[1],
        weight.scales.shape[2],
        settings.up_offset,
        PAIRS_PER_ROW=pairs // numbers.shape[0],
        ACTIVATION=settings.activation or "",
        GATED=settings.gated,
        LIMIT=settings.limit or 0.0,
        CODES=sums.codes,
        FACTOR=CODE_FACTOR[sums.codes],
        TERMS=sums.terms,
        X_GROUP=GROUP,
        GROUP=sums.group,
        HAS_MINIMUMS=minimums is not None,
        HAS_BIAS=bias is not None,
        BYTES=bytes_of_step(weight.group, sizes.inputs),
        HALF_RUN=HALF_RUN,
        PAIR_TILE=sizes.rows,
        COLUMN_TILE=sizes.columns,
        INPUT_TILE=sums.inputs_of_step(weight.group, sizes.inputs),
        num_warps=sizes.warps,
        enable_fp_fusion=True,
        num_stages=sizes.stages,
    )
    return out


def _tiles(x: Tensor | RoundedRows, weight: ByteMatrix | Int4Matrix, pairs: int) -> Tiles:
    """Tile sizes, warps and stages of the kernel. pairs: pairs of row and expert in a tile."""
    has_few_pairs, is_int4 = pairs == SMALLEST_TILE, isinstance(weight, Int4Matrix)
    if not isinstance(x, Tensor):
        # Compiled, and not tuned on a device. More features would need more registers than there are.
        return Tiles(pairs, 64 if has_few_pairs else 32, GROUP, 4, 3)
    if is_float32(x.dtype):
        return Tiles(pairs, 32, 64 if is_int4 else 32, 4, 3)
    # So few numbers are loaded by fewer threads, 16 bytes each.
    is_small = has_few_pairs and is_int4 and bytes_of_step(weight.group, 128) == HALF_RUN
    # The conversion of fp8 codes needs the registers of more warps.
    is_fp8 = isinstance(weight, ByteMatrix) and weight.kind == "fp8"
    warps = 2 if is_small else 8 if is_fp8 and not has_few_pairs else 4
    return Tiles(pairs, 32 if has_few_pairs else 64, 128, warps, 3)


@kernel(do_not_specialize=["tile_experts", "tile_starts", "tile_ends", "x_rows"])
def _pairs_kernel(
    x,
    x_scales,
    codes,
    scales,
    minimums,
    bias,
    out,
    order,
    tile_experts,
    tile_starts,
    tile_ends,
    x_rows,
    columns,
    inputs,
    x_groups,
    groups,
    up_offset,
    PAIRS_PER_ROW: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    LIMIT: tl.constexpr,
    CODES: tl.constexpr,
    FACTOR: tl.constexpr,
    TERMS: tl.constexpr,
    X_GROUP: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BYTES: tl.constexpr,
    HALF_RUN: tl.constexpr,
    PAIR_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
    INPUT_TILE: tl.constexpr,
):
    """Compute some output features of the pairs in one tile, with the weight of the tile's expert.

    With GATED, compute these features with the gate matrix and with the up matrix, and combine both results.
    x_rows: number of rows of x.
    """
    expert, pair, is_pair = pairs_of_tile(order, tile_experts, tile_starts, tile_ends, PAIR_TILE)
    if expert < 0:
        return
    row, rest = pair // PAIRS_PER_ROW, x_rows.to(tl.int64) * inputs
    column = tl.program_id(1) * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
    is_column = column < columns
    first_feature = expert * (columns * 2 if GATED else columns)
    total = quantized_sums(
        x + row * inputs, x_scales + row * x_groups, rest, is_pair, codes, scales, minimums, first_feature + column,
        is_column, inputs, groups, CODES, FACTOR, TERMS, X_GROUP, GROUP, HAS_MINIMUMS, BYTES, HALF_RUN, PAIR_TILE,
        COLUMN_TILE, INPUT_TILE,
    )  # fmt: skip
    up_total = total
    if GATED:
        up_total = quantized_sums(
            x + row * inputs, x_scales + row * x_groups, rest, is_pair, codes, scales, minimums,
            first_feature + columns + column, is_column, inputs, groups, CODES, FACTOR, TERMS, X_GROUP, GROUP,
            HAS_MINIMUMS, BYTES, HALF_RUN, PAIR_TILE, COLUMN_TILE, INPUT_TILE,
        )  # fmt: skip
    result = combine(
        tl.trans(total), tl.trans(up_total), bias + first_feature, column, columns, is_column, up_offset,
        out.dtype.element_ty, ACTIVATION, GATED, LIMIT, HAS_BIAS,
    )  # fmt: skip
    tl.store(out + pair[:, None] * columns + column[None, :], result, mask=is_pair[:, None] & is_column[None, :])
