"""Decode what the block types of GGUF share: float16 scales, packed codes, and scales that are codes themselves.

Functions take blocks of bytes [..., blocks, bytes], where the blocks lie along the inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weights.quantized_matrix import QuantizedMatrix


def half(blocks: Tensor, start: int) -> Tensor:
    """A float16 in each block, as float32: [..., blocks, 1]."""
    return blocks[..., start : start + 2].contiguous().view(torch.float16).float()


def shifted(packed: Tensor, bits: int, run: int) -> Tensor:
    """Unpack codes that lie in runs: each run of bytes has the low bits of the first codes, then the next bits.

    packed: [..., bytes]. bits: bits of a code. run: bytes of a run.
    Returns [..., 8 / bits * bytes], uint8.
    """
    runs = packed.reshape(*packed.shape[:-1], -1, run)
    parts = [runs >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return torch.stack(parts, dim=-2).flatten(-3)


def bit_of_each(packed: Tensor) -> Tensor:
    """The 32 bits of four bytes, lowest first: [..., 4] -> [..., 32], uint8."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return (packed[..., None] >> shifts & 1).flatten(-2)


def joined(of_blocks: Tensor) -> Tensor:
    """Join the last two dimensions, blocks and numbers per block, to one along the inputs."""
    return of_blocks.flatten(-2)


def signed(codes: Tensor, zero: int) -> Tensor:
    """Codes whose value is their difference to `zero`, as int8."""
    return codes.view(torch.int8) - zero


def two_levels(
    codes: Tensor,
    bits: int,
    group: int,
    unit: Tensor,
    scales: Tensor,
    minimum_unit: Tensor | None = None,
    minimums: Tensor | None = None,
    table: Tensor | None = None,
) -> QuantizedMatrix:
    """A matrix whose scales and minimums are integers times a unit per block.

    All tensors but the table: [..., blocks, n].
    """
    units = unit if minimum_unit is None else torch.cat([unit, minimum_unit], dim=-1)
    products = None if minimums is None or minimum_unit is None else joined(minimum_unit * minimums)
    return QuantizedMatrix(joined(codes), bits, group, joined(unit * scales), products, table, units)
