"""Products of a mixture of experts: each (token, expert) pair with the weight of its expert.

Pairs are sorted by expert and cut into tiles; a program multiplies one tile by some output features of its expert. The
number of tiles is an upper bound that depends on shapes alone, so that no count is read on the host.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

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
    raise NotImplementedError


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
    raise NotImplementedError


def expert_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, tiles: ExpertTiles, activation: Activation | None = None
) -> Tensor:
    """Products of pairs: last products, or first products of experts without a gate.

    x: [tokens, in] or [tokens * choices, in], contiguous: one row per token or one per pair.
    weight: [experts, out, in], contiguous. bias: [experts, out] or None.
    Returns [tokens * choices, out], in the order of pairs.
    """
    raise NotImplementedError


def sum_of_experts(x: Tensor, shares: Tensor, shared: Tensor | None, shared_gate: Tensor | None) -> Tensor:
    """Sum of the results of each token's experts, each times its share, in float32 and in the order of the choices.

    x: [tokens * choices, width], in the order of pairs, contiguous. shares: [tokens, choices], float32.
    shared: [tokens, width], contiguous, added to the sum, or None.
    shared_gate: [tokens, 1]; `shared` is first multiplied by its sigmoid. None for a factor of one.
    Returns [tokens, width], dtype of x.
    """
    raise NotImplementedError
