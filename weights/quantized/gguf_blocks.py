"""Decode the common parts of GGUF's block types: float16 scales, packed codes, and quantised scales.

Functions take blocks of bytes [..., blocks, bytes], in the order of the inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weights.quantized_matrix import QuantizedMatrix


def half(blocks: Tensor, start: int) -> Tensor:
    """Read a float16 number at byte `start` of each block. Returns [..., blocks, 1], float32."""
    return blocks[..., start : start + 2].contiguous().view(torch.float16).float()


def shifted(packed: Tensor, bits: int, run: int) -> Tensor:
    """Unpack codes that are stored in runs of `run` bytes.

    Of each run, the lowest `bits` bits of its bytes are the first `run` codes, one per byte; the next higher bits are
    the next `run` codes, and so on.

    packed: [..., bytes]. bits: bits per code. run: number of bytes in a run.
    Returns [..., 8 / bits * bytes], uint8.
    """
    runs = packed.reshape(*packed.shape[:-1], -1, run)
    parts = [runs >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return torch.stack(parts, dim=-2).flatten(-3)


def bit_of_each(packed: Tensor) -> Tensor:
    """Unpack the bits of each byte, lowest first: [..., bytes] to [..., 8 * bytes], uint8."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return (packed[..., None] >> shifts & 1).flatten(-2)


def joined(of_blocks: Tensor) -> Tensor:
    """Join the last two dimensions: [..., blocks, numbers per block] to [..., blocks * numbers per block]."""
    return of_blocks.flatten(-2)


def signed(codes: Tensor, zero: int) -> Tensor:
    """Subtract `zero` from codes. codes: uint8. Returns int8."""
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
    """A matrix whose scales and minimums are integers times one unit per block.

    codes, scales, minimums: [..., blocks, number per block]. Without `minimums`, they are zero.
    unit, minimum_unit: [..., blocks, 1], units of the scales and of the minimums.
    bits: bits per code. group: number of inputs that share a scale.
    table: value of each code, None if a code is its value.
    """
    units = unit if minimum_unit is None else torch.cat([unit, minimum_unit], dim=-1)
    products = None if minimums is None or minimum_unit is None else joined(minimum_unit * minimums)
    return QuantizedMatrix(joined(codes), bits, group, joined(unit * scales), products, table, units)
