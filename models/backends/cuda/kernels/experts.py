"""Products of a mixture of experts: each (token, expert) pair with the weight of its expert.

Pairs are sorted by expert and cut into tiles; a program multiplies one tile by some output features of its expert. The
number of tiles is an upper bound that depends on shapes alone, so that no count is read on the host.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.activation import activate
from models.backends.cuda.kernels.launch import is_wide, power_of_two
from models.config import Activation


class ExpertTiles(NamedTuple):
    """The pairs of a step, sorted by expert. Pair `token * choices + choice` has choice `choice` of a token.

    order: [tokens * choices], int32: pair at each place of the sorted order, stable.
    tile_experts, tile_starts, tile_ends: [tiles], int32: expert, first place and end of each tile. Unused tiles are
        empty.
    choices: experts of a token.
    tile: places of a tile at most.
    """

    order: Tensor
    tile_experts: Tensor
    tile_starts: Tensor
    tile_ends: Tensor
    choices: int
    tile: int


def group_by_expert(experts: Tensor, num_experts: int) -> ExpertTiles:
    """Sort pairs by expert. experts: [tokens, choices], int64. Reads nothing on the host."""
    pairs = experts.numel()
    tile = min(_MOST_PAIRS, max(16, power_of_two(-(-pairs // num_experts))))
    ordered, order = experts.flatten().sort(stable=True)
    numbers = torch.arange(num_experts + 1, device=experts.device)
    bounds = torch.searchsorted(ordered, numbers)
    tiles = (bounds.diff() + tile - 1) // tile
    ends = tiles.cumsum(0)
    # The number of tiles is at most this, however the pairs are divided among the experts.
    number = torch.arange(min(pairs, pairs // tile + num_experts), device=experts.device)
    expert = torch.searchsorted(ends, number, right=True).clamp(max=num_experts - 1)
    starts = bounds[expert] + (number - ends[expert] + tiles[expert]) * tile
    is_used = number < ends[-1]
    starts = torch.where(is_used, starts, 0)
    stops = torch.where(is_used, torch.minimum(starts + tile, bounds[expert + 1]), 0)
    return ExpertTiles(order.int(), expert.int(), starts.int(), stops.int(), experts.shape[1], tile)


_MOST_PAIRS = 64
"""Largest number of pairs of a tile."""


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
    bias: [experts, 2 * width] or None. limit: None for no limits.
    Returns [tokens * choices, width], in the order of pairs.
    """
    out = x.new_empty(len(tiles.order), weight.shape[1] // 2)
    return _multiply(x, weight, bias, tiles, out, activation, True, limit, up_offset)


def expert_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, tiles: ExpertTiles, activation: Activation | None = None
) -> Tensor:
    """Products of pairs: last products, or first products of experts without a gate.

    x: [tokens, in] or [tokens * choices, in], contiguous: one row per token or one per pair.
    weight: [experts, out, in], contiguous. bias: [experts, out] or None.
    Returns [tokens * choices, out], in the order of pairs.
    """
    out = x.new_empty(len(tiles.order), weight.shape[1])
    return _multiply(x, weight, bias, tiles, out, activation, False, None, 0.0)


def sum_of_experts(x: Tensor, shares: Tensor, shared: Tensor | None, shared_gate: Tensor | None) -> Tensor:
    """Sum of the results of each token's experts, each times its share, in float32 and in the order of the choices.

    x: [tokens * choices, width], in the order of pairs, contiguous. shares: [tokens, choices], float32.
    shared: [tokens, width], contiguous, added to the sum, or None.
    shared_gate: [tokens, 1]; `shared` is first multiplied by its sigmoid. None for a factor of one.
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
"""Numbers of a token that a program sums."""


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
    column_tile, input_tile = (32, 32) if is_wide(x.dtype) else (64, 64)
    _product_kernel[len(tiles.tile_experts), -(-columns // column_tile)](
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
        PAIRS_PER_ROW=pairs // len(x),
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


@triton.jit
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
    """A tile of pairs of one expert, times some of its output features; of the gate and of up if gated."""
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


@triton.jit
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
