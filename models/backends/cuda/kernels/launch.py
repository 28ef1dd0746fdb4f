"""Sizes of tiles and numbers of warps, for the functions that launch kernels."""

from __future__ import annotations

import torch

SMALLEST_TILE = 16
"""Smallest side of a matrix product in a tile."""


def power_of_two(number: int) -> int:
    """The smallest power of two from `number` up."""
    return 1 << max(0, number - 1).bit_length()


def tile_width(number: int) -> int:
    """Width of a tile for `number` columns of a matrix product."""
    return max(SMALLEST_TILE, power_of_two(number))


def warps(elements: int, per_warp: int = 512, most: int = 16) -> int:
    """Warps of a program that holds `elements` numbers at once. A power of two."""
    return min(most, max(1, power_of_two(-(-elements // per_warp))))


def is_wide(dtype: torch.dtype) -> bool:
    """Whether products of a dtype are computed without matrix units, exactly, which needs more registers."""
    return dtype == torch.float32
