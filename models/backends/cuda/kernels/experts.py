"""Products of a mixture of experts: each (token, expert) pair is multiplied by the weight of its expert.

Pairs are sorted by expert and cut into tiles. A program multiplies one tile by the weights of some output features of
its expert. The number of tiles is an upper bound that depends on shapes alone, so no number of pairs is copied to the
host.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.activation import activate
from models.backends.cuda.kernels.launch import is_float32, kernel, power_of_two, warps
from models.config import Activation


class ExpertTiles(NamedTuple):
    """The (token, expert) pairs of a step, sorted by expert and cut into tiles of one expert each.

    Pair `token * choices + choice` consists of a token and its expert at index `choice`.

    order: [tokens * choices], int32: the pair at each index of the sorted order. The order is stable.
    tile_experts, tile_starts, tile_ends: [tiles], int32: expert of each tile, its first index in the sorted order, and
        the index after its last. Unused tiles are empty.
    choices: number of experts of each token.
    tile: largest number of pairs of a tile.
    """

    order: Tensor
    tile_experts: Tensor
    tile_starts: Tensor
    tile_ends: Tensor
    choices: int
    tile: int


def group_by_expert(experts: Tensor, num_experts: int) -> ExpertTiles:
    """Sort the (token, expert) pairs of a step by expert, and cut them into tiles of one expert each.

    experts: [tokens, choices], int64, contiguous, each below num_experts.
    """
    pairs, device = experts.numel(), experts.device
    tile = min(_MOST_PAIRS, max(16, power_of_two(-(-pairs // num_experts))))
    # An upper bound: each expert has at most one tile that is not full, and a used tile has at least one pair.
    num_tiles = min(pairs, pairs // tile + num_experts)
    order = torch.empty(pairs, dtype=torch.int32, device=device)
    spans = torch.empty(2, num_experts, dtype=torch.int32, device=device)
    columns = torch.empty(3, num_tiles, dtype=torch.int32, device=device)
    if pairs:
        _order_kernel[(num_experts,)](
            experts,
            order,
            spans,
            pairs,
            TILE=_ORDER_TILE,
            num_warps=warps(_ORDER_TILE),
            enable_fp_fusion=True,
        )
        width = power_of_two(num_experts)
        _cut_kernel[(-(-num_tiles // _CUT_TILE),)](
            spans,
            columns,
            num_experts,
            num_tiles,
            PAIR_TILE=tile,
            EXPERTS_TILE=width,
            TILE=_CUT_TILE,
            num_warps=warps(_CUT_TILE * width),
            enable_fp_fusion=True,
        )
    return ExpertTiles(order, columns[0], columns[1], columns[2], experts.shape[1], tile)


_MOST_PAIRS = 64
"""Largest number of pairs of a tile."""
_ORDER_TILE = 1024
"""Number of pairs that a program loads at once when it sorts them."""
_CUT_TILE = 16
"""Number of tiles that one program of `_cut_kernel` describes."""


@kernel(do_not_specialize=["pairs"])
def _order_kernel(experts, order, spans, pairs, TILE: tl.constexpr):
    """Write the pairs of one expert into the sorted order.

    spans: [2, experts], output: first index of each expert in the sorted order, and the index after its last.
    """
    expert = tl.program_id(0)
    first = tl.zeros([], tl.int32)
    for start in range(0, pairs, TILE):
        pair = start + tl.arange(0, TILE)
        other = tl.load(experts + pair, mask=pair < pairs, other=2147483647)
        first += tl.sum((other < expert).to(tl.int32), 0)
    end = first
    for start in range(0, pairs, TILE):
        pair = start + tl.arange(0, TILE)
        is_own = tl.load(experts + pair, mask=pair < pairs, other=2147483647) == expert
        tl.store(order + end + tl.cumsum(is_own.to(tl.int32), 0) - 1, pair, mask=is_own)
        end += tl.sum(is_own.to(tl.int32), 0)
    tl.store(spans + expert, first)
    tl.store(spans + tl.num_programs(0) + expert, end)


@kernel(do_not_specialize=["num_tiles"])
def _cut_kernel(
    spans,
    columns,
    num_experts,
    num_tiles,
    PAIR_TILE: tl.constexpr,
    EXPERTS_TILE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Find the expert and the range of each tile, and write them to `columns`.

    columns: [3, tiles], int32: expert, first index in the sorted order, index after the last. Unused tiles get zeros.
    """
    expert = tl.arange(0, EXPERTS_TILE)
    first = tl.load(spans + expert, mask=expert < num_experts, other=0)
    end = tl.load(spans + num_experts + expert, mask=expert < num_experts, other=0)
    tiles = (end - first + PAIR_TILE - 1) // PAIR_TILE
    next_tile = tl.cumsum(tiles, 0)
    number = tl.program_id(0) * TILE + tl.arange(0, TILE)
    place = number[:, None] - (next_tile - tiles)[None, :]
    is_own = (place >= 0) & (place < tiles[None, :])
    start = tl.sum(tl.where(is_own, first[None, :] + place * PAIR_TILE, 0), 1)
    stop = tl.sum(tl.where(is_own, end[None, :], 0), 1)
    inside = number < num_tiles
    tl.store(columns + number, tl.sum(tl.where(is_own, expert[None, :], 0), 1), mask=inside)
    tl.store(columns + num_tiles + number, start, mask=inside)
    tl.store(columns + 2 * num_tiles + number, tl.minimum(start + PAIR_TILE, stop), mask=inside)


def gated_expert_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tiles: ExpertTiles,
    activation: Activation,
    limit: float | None = None,
    up_offset: float = 0.0,
) -> Tensor:
    """First products of gated experts: `act(min(gate, limit)) * (clamp(up, -limit, limit) + up_offset)`.

    x: [tokens, in], contiguous. weight: [experts, 2 * width, in], contiguous: features of the gate, then of up.
    bias: [experts, 2 * width] or None. tiles: result of `group_by_expert`. limit: None for no limit.
    Returns [tokens * choices, width], in the order of pairs.
    """
    out = x.new_empty(tiles.order.shape[0], weight.shape[1] // 2)
    return _multiply(x, weight, bias, tiles, out, activation, True, limit, up_offset)


def expert_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, tiles: ExpertTiles, activation: Activation | None = None
) -> Tensor:
    """Products of pairs: the last products of experts, or the first products of experts without a gate.

    x: [tokens, in] or [tokens * choices, in], contiguous: one row per token or one per pair.
    weight: [experts, out, in], contiguous. bias: [experts, out] or None. tiles: result of `group_by_expert`.
    Returns [tokens * choices, out], in the order of pairs.
    """
    out = x.new_empty(tiles.order.shape[0], weight.shape[1])
    return _multiply(x, weight, bias, tiles, out, activation, False, None, 0.0)


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
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tiles: ExpertTiles,
    out: Tensor,
    activation: Activation | None,
    gated: bool,
    limit: float | None,
    up_offset: float,
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
        up_offset,
        PAIRS_PER_ROW=pairs // x.shape[0],
        ACTIVATION=activation or "",
        GATED=gated,
        LIMIT=0.0 if limit is None else limit,
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
    """Multiply a tile of pairs by the weights of some output features of the tile's expert.

    With GATED, multiply by the same features of the gate matrix and of the up matrix, and combine both products.
    """
    tile = tl.program_id(0)
    start = tl.load(tile_starts + tile)
    end = tl.load(tile_ends + tile)
    if start >= end:
        return
    expert = tl.load(tile_experts + tile).to(tl.int64)
    places = start + tl.arange(0, PAIR_TILE)
    is_pair = places < end
    pair = tl.load(order + places, mask=is_pair, other=0).to(tl.int64)
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
    if HAS_BIAS:
        total += tl.load(bias + expert * features + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    dtype = out.dtype.element_ty
    if GATED:
        if HAS_BIAS:
            up_bias = tl.load(bias + expert * features + columns + column, mask=is_column, other=0.0)
            up_total += up_bias.to(tl.float32)[None, :]
        gate, up = total.to(dtype).to(tl.float32), up_total.to(dtype).to(tl.float32)
        if LIMIT > 0.0:
            gate = tl.where(gate > LIMIT, LIMIT, gate)
            up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
        up = (up + up_offset).to(dtype).to(tl.float32)
        total = activate(gate, ACTIVATION).to(dtype).to(tl.float32) * up
    elif ACTIVATION != "":
        total = activate(total.to(dtype).to(tl.float32), ACTIVATION)
    tl.store(
        out + pair[:, None] * columns + column[None, :], total.to(dtype), mask=is_pair[:, None] & is_column[None, :]
    )


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
