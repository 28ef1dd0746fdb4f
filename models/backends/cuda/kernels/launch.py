"""Sizes of tiles and numbers of warps, for the functions that launch kernels.

Triton compiles a kernel once for each dtype, constant, and divisibility by 16 of pointers and numbers. Arguments that
change from step to step are therefore listed as `do_not_specialize`: a compilation in service would stop all streams.
All launches name `enable_fp_fusion`, whose default changes after Triton 3.9.
"""

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


def is_float32(dtype: torch.dtype) -> bool:
    """Whether products are computed without matrix units, exactly, so that tiles need more registers."""
    return dtype == torch.float32


def pipeline_stages(elements: int, dtype: torch.dtype, is_paged: bool) -> int:
    """Stages of the loop over tiles of keys: the loads of the next tile run while this one is computed.

    Triton needs a stage more where the addresses are loaded in the loop too, and pipelines nothing otherwise.
    elements: of a tile of keys. Tiles of more than 16 KB would need more shared memory than 99 KB for two tiles each of
        keys and values.
    """
    if elements * dtype.itemsize > 16 * 1024:
        return 1
    return 3 if is_paged else 2
