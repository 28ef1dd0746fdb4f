"""Keys or values of one layer in a cache of 8 bits: codes, and a scale for each slot and head."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from models.backends.lazy_zeros import lazy_zeros

MAX_INT8_HEAD = 1024
"""Largest head dimension of an int8 cache on a CPU: the kernels compute scores in int32."""
FP8 = torch.float8_e4m3fn
"""The dtype of codes in an fp8 cache: 4 bits of exponent, 3 of mantissa, no infinities."""
CACHE_DTYPES = torch.int8, FP8
"""Dtypes of caches that have a scale for each slot and head."""

_LARGEST_CODES = {torch.int8: 127.0, FP8: 448.0}
_SMALLEST_SIZE = 1e-30


class RoundedSlots(NamedTuple):
    """Keys or values rounded to int8 or fp8. A number is its code times the scale of its slot and head.

    codes: [blocks, block_size, kv_heads, head_dim], int8, or uint8 with the bits of fp8 numbers (E4M3).
    scales: [blocks, kv_heads, block_size], bfloat16; NaN for a head with a number that is not finite.
    block_size: slots of a block.
    """

    codes: Tensor
    scales: Tensor
    block_size: int

    @staticmethod
    def zeros(
        num_blocks: int,
        block_size: int,
        num_heads: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype = torch.int8,
    ) -> RoundedSlots:
        """Slots that are all zero. dtype: int8 or `FP8`."""
        stored = torch.uint8 if dtype == FP8 else dtype
        codes = lazy_zeros((num_blocks, block_size, num_heads, head_dim), stored, device)
        scales = lazy_zeros((num_blocks, num_heads, block_size), torch.bfloat16, device)
        return RoundedSlots(codes, scales, block_size)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the codes: int8 or `FP8`."""
        return torch.int8 if self.codes.dtype == torch.int8 else FP8

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def write(self, slots: Tensor, x: Tensor) -> None:
        """Round keys or values, and store them in the slots of their tokens.

        slots: [tokens], int64: `block * block_size + offset`. x: [tokens, kv_heads, head_dim], any float dtype.
        """
        codes, scales = quantize_heads(x, self.dtype)
        self.codes.flatten(0, 1).index_copy_(0, slots, codes.view(self.codes.dtype))
        self.scales.transpose(1, 2)[slots // self.block_size, slots % self.block_size] = scales

    def read(self, slots: Tensor, dtype: torch.dtype) -> Tensor:
        """Dequantise the keys or values in the given slots.

        slots: [tokens], int64: `block * block_size + offset`. Returns [tokens, kv_heads, head_dim], `dtype`.
        """
        scales = self.scales.transpose(1, 2)[slots // self.block_size, slots % self.block_size]
        return (self._numbers(self.codes.flatten(0, 1)[slots]) * scales[..., None].float()).to(dtype)

    def blocks(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """Dequantise all keys or values in the given blocks.

        index: [n], int64: indices of the blocks. Returns [n, block_size, kv_heads, head_dim], `dtype`.
        """
        scales = self.scales[index].transpose(1, 2)[..., None].float()
        return (self._numbers(self.codes[index]) * scales).to(dtype)

    def _numbers(self, codes: Tensor) -> Tensor:
        """Convert stored codes (int8, or uint8 with the bits of fp8) to float32, without applying scales."""
        return codes.view(self.dtype).float()


CacheSide: TypeAlias = "Tensor | RoundedSlots"
"""Keys or values of one layer in a cache: a float tensor [blocks, block_size, kv_heads, head_dim], or RoundedSlots."""


def quantize_heads(x: Tensor, dtype: torch.dtype = torch.int8) -> tuple[Tensor, Tensor]:
    """Round keys or values with one scale per token and head, as the kernels do.

    x: [tokens, kv_heads, head_dim]. dtype: int8 or `FP8`.
    Returns codes like x, of this dtype, and scales [tokens, kv_heads], bfloat16.
    """
    wide = x.float()
    size = wide.abs().amax(-1)
    finite = torch.isfinite(size)
    scales = torch.where(size > _SMALLEST_SIZE, size / _LARGEST_CODES[dtype], 0.0).to(torch.bfloat16)
    inverse = torch.where(finite & (scales > 0), 1.0 / scales.float(), 0.0)[..., None]
    multiples = torch.where(finite[..., None], wide, 0.0) * inverse
    codes = (multiples if dtype == FP8 else multiples.round()).to(dtype)
    return codes, torch.where(finite, scales, torch.nan)
