"""Products of a mixture of experts: each (token, expert) pair is multiplied by the weight of its expert.

All pairs of a tile (`expert_tiles`) have the same expert. A program computes some output features of one tile.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels import quantized_experts
from models.backends.cuda.kernels.expert_epilogue import EpilogueSettings, combine
from models.backends.cuda.kernels.expert_tiles import ExpertTiles, pairs_of_tile
from models.backends.cuda.kernels.launch import is_float32, kernel
from models.backends.cuda.kernels.matrices import ByteMatrix, Int4Matrix
from models.backends.cuda.kernels.rounded_rows import RoundedRows

ExpertMatrix = Tensor | ByteMatrix | Int4Matrix
"""Weights of all experts: [experts, columns, in], or codes with this shape ([experts, columns, in / 2] for 4 bits)."""


def expert_linear(
    x: Tensor | RoundedRows,
    weight: ExpertMatrix,
    bias: Tensor | None,
    tiles: ExpertTiles,
    settings: EpilogueSettings = EpilogueSettings(),  # noqa: B008 (immutable)
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Multiply each (token, expert) pair by a weight of its expert: the first or the last matrix of its feed-forward.

    x: [tokens, in], one row per token, or [tokens * choices, in], one row per pair. Contiguous, or as rounded rows.
    weight: contiguous, dtype of x or quantised. bias: [experts, columns] or None. tiles: result of `group_by_expert`.
    dtype: dtype of the result; None for the dtype of x. Must be given for rounded rows.
    Returns [tokens * choices, columns], in the order of pairs; with a gate, half as many columns.
    """
    columns = (weight if isinstance(weight, Tensor) else weight.codes).shape[1]
    shape = tiles.order.shape[0], columns // 2 if settings.gated else columns
    if isinstance(x, Tensor):
        out = x.new_empty(shape, dtype=dtype)
    else:
        assert dtype is not None, "rounded rows have no dtype of their own"
        out = x.scales.new_empty(shape, dtype=dtype)
    if not isinstance(weight, Tensor):
        return quantized_experts.multiply_pairs(x, weight, bias, tiles, out, settings)
    assert isinstance(x, Tensor), "only codes are multiplied by rounded rows"
    return _multiply(x, weight, bias, tiles, out, settings)


def sum_of_experts(x: Tensor, shares: Tensor, shared: Tensor | None, shared_gate: Tensor | None) -> Tensor:
    """Weighted sum of the results of each token's experts, in float32 and in the order of the choices.

    x: [tokens * choices, width], in the order of pairs, contiguous.
    shares: [tokens, choices], float32: weight of each expert.
    shared: [tokens, width], contiguous: result of the shared expert, which is added to the sum; None without one.
    shared_gate: [tokens, 1]: `shared` is multiplied by `sigmoid(shared_gate)`. None for a factor of one.
    Returns [tokens, width], dtype of x.
    """
    tokens, choices = shares.shape
    width = x.shape[1]
    out = x.new_empty(tokens, width)
    if tokens:
        _sum_kernel[tokens, -(-width // _SUM_TILE)](
            x,
            shares,
            x if shared is None else shared,
            x if shared_gate is None else shared_gate,
            out,
            width,
            CHOICES=choices,
            HAS_SHARED=shared is not None,
            HAS_GATE=shared_gate is not None,
            TILE=_SUM_TILE,
            num_warps=4,
            enable_fp_fusion=True,
        )
    return out


_SUM_TILE = 1024
"""Number of hidden dimensions of one token that a program sums."""


def _multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None, tiles: ExpertTiles, out: Tensor, settings: EpilogueSettings
) -> Tensor:
    pairs, columns = out.shape
    if pairs == 0:
        return out
    column_tile, input_tile = (32, 32) if is_float32(x.dtype) else (64, 64)
    _product_kernel[tiles.tile_experts.shape[0], -(-columns // column_tile)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        tiles.order,
        tiles.tile_experts,
        tiles.tile_starts,
        tiles.tile_ends,
        columns,
        x.shape[1],
        settings.up_offset,
        PAIRS_PER_ROW=pairs // x.shape[0],
        ACTIVATION=settings.activation or "",
        GATED=settings.gated,
        LIMIT=settings.limit or 0.0,
        HAS_BIAS=bias is not None,
        PAIR_TILE=tiles.tile,
        COLUMN_TILE=column_tile,
        INPUT_TILE=input_tile,
        num_warps=4,
        enable_fp_fusion=True,
        num_stages=3,
    )
    return out


@kernel(do_not_specialize=["tile_experts", "tile_starts", "tile_ends"])
def _product_kernel(
    x,
    weight,
    bias,
    out,
    order,
    tile_experts,
    tile_starts,
    tile_ends,
    columns,
    inputs,
    up_offset,
    PAIRS_PER_ROW: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    LIMIT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PAIR_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
    INPUT_TILE: tl.constexpr,
):
    """Compute some output features of the pairs in one tile, with the weight of the tile's expert.

    With GATED, compute these features with the gate matrix and with the up matrix, and combine both results.
    """
    expert, pair, is_pair = pairs_of_tile(order, tile_experts, tile_starts, tile_ends, PAIR_TILE)
    if expert < 0:
        return
    row = pair // PAIRS_PER_ROW
    column = tl.program_id(1) * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
    is_column = column < columns
    features = columns * 2 if GATED else columns
    first = weight + expert * features * inputs + column.to(tl.int64)[:, None] * inputs
    up_first = weight + expert * features * inputs + (column.to(tl.int64) + columns)[:, None] * inputs
    total = tl.zeros([PAIR_TILE, COLUMN_TILE], tl.float32)
    up_total = tl.zeros([PAIR_TILE, COLUMN_TILE], tl.float32)
    for step in range(0, inputs, INPUT_TILE):
        place = step + tl.arange(0, INPUT_TILE)
        is_input = place < inputs
        a = tl.load(x + row[:, None] * inputs + place[None, :], mask=is_pair[:, None] & is_input[None, :], other=0.0)
        inside = is_column[:, None] & is_input[None, :]
        w = tl.load(first + place[None, :], mask=inside, other=0.0)
        total = tl.dot(a, tl.trans(w), total, input_precision="ieee")
        if GATED:
            u = tl.load(up_first + place[None, :], mask=inside, other=0.0)
            up_total = tl.dot(a, tl.trans(u), up_total, input_precision="ieee")
    result = combine(
        total, up_total, bias + expert * features, column, columns, is_column, up_offset, out.dtype.element_ty,
        ACTIVATION, GATED, LIMIT, HAS_BIAS,
    )  # fmt: skip
    tl.store(out + pair[:, None] * columns + column[None, :], result, mask=is_pair[:, None] & is_column[None, :])


@kernel()
def _sum_kernel(
    x,
    shares,
    shared,
    shared_gate,
    out,
    width,
    CHOICES: tl.constexpr,
    HAS_SHARED: tl.constexpr,
    HAS_GATE: tl.constexpr,
    TILE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < width
    total = tl.zeros([TILE], tl.float32)
    for choice in range(CHOICES):
        share = tl.load(shares + token * CHOICES + choice)
        part = tl.load(x + (token * CHOICES + choice) * width + column, mask=inside, other=0.0)
        total += part.to(tl.float32) * share
    if HAS_SHARED:
        every = tl.load(shared + token * width + column, mask=inside, other=0.0).to(tl.float32)
        if HAS_GATE:
            every *= tl.sigmoid(tl.load(shared_gate + token).to(tl.float32))
        total += every
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=inside)
