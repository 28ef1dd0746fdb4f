"""The (token, expert) pairs of a step, sorted by expert and cut into tiles.

The number of tiles is an upper bound that depends on shapes alone, so no number of pairs is copied to the host.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.launch import kernel, power_of_two, warps


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


def group_by_expert(experts: Tensor, num_experts: int, fixed_order: bool = False) -> ExpertTiles:
    """Sort the (token, expert) pairs of a step by expert, and cut them into tiles of one expert each.

    experts: [tokens, choices], int64, contiguous, each below num_experts.
    fixed_order: whether tiles have the same size in all steps, so that the result of a token has the same bits for
        every number of tokens.
    """
    pairs, device = experts.numel(), experts.device
    tile = _MOST_PAIRS if fixed_order else min(_MOST_PAIRS, max(16, power_of_two(-(-pairs // num_experts))))
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


@triton.jit
def pairs_of_tile(order, tile_experts, tile_starts, tile_ends, PAIR_TILE: tl.constexpr):
    """The pairs of the tile that this program computes: the tile with the index `tl.program_id(0)`.

    order: the pair at each index of the sorted order. tile_experts, tile_starts, tile_ends: expert of each tile, its
        first index in the sorted order, and the index after its last.
    Returns three values. int64: the expert of the tile; -1 for an empty tile. [PAIR_TILE], int64: the index of each
    pair. [PAIR_TILE], bool: which pairs exist.
    """
    tile = tl.program_id(0)
    start, end = tl.load(tile_starts + tile), tl.load(tile_ends + tile)
    expert = tl.where(start < end, tl.load(tile_experts + tile), -1).to(tl.int64)
    places = start + tl.arange(0, PAIR_TILE)
    is_pair = places < end
    return expert, tl.load(order + places, mask=is_pair, other=0).to(tl.int64), is_pair


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
