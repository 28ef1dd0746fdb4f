"""Keys or values of one layer in an int8 cache: codes, and a scale for each slot and head."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from models.backends.lazy_zeros import lazy_zeros

MAX_INT8_HEAD = 1024
"""Largest head dimension of an int8 cache: the kernels compute scores in int32."""

_LARGEST_CODE = 127
_SMALLEST_SIZE = 1e-30


class Int8Slots(NamedTuple):
    """Keys or values rounded to int8. A number is its code times the scale of its slot and head.

    codes: [blocks, block_size, kv_heads, head_dim], int8.
    scales: [blocks, kv_heads, block_size], bfloat16; NaN for a head with a number that is not finite.
    block_size: slots of a block.
    """

    codes: Tensor
    scales: Tensor
    block_size: int

    @staticmethod
    def zeros(num_blocks: int, block_size: int, num_heads: int, head_dim: int, device: torch.device) -> Int8Slots:
        codes = lazy_zeros((num_blocks, block_size, num_heads, head_dim), torch.int8, device)
        scales = lazy_zeros((num_blocks, num_heads, block_size), torch.bfloat16, device)
        return Int8Slots(codes, scales, block_size)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def write(self, slots: Tensor, x: Tensor) -> None:
        """Round keys or values to int8, and store them. slots: [tokens], int64. x: [tokens, kv_heads, head_dim]."""
        codes, scales = quantize_heads(x)
        self.codes.flatten(0, 1).index_copy_(0, slots, codes)
        self.scales.transpose(1, 2)[slots // self.block_size, slots % self.block_size] = scales

    def read(self, slots: Tensor, dtype: torch.dtype) -> Tensor:
        """The numbers of some slots, converted to `dtype`: [tokens, kv_heads, head_dim]. slots: [tokens], int64."""
        scales = self.scales.transpose(1, 2)[slots // self.block_size, slots % self.block_size]
        return (self.codes.flatten(0, 1)[slots] * scales[..., None].float()).to(dtype)

    def blocks(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """The numbers of some blocks, converted to `dtype`: [n, block_size, kv_heads, head_dim]. index: [n], int64."""
        scales = self.scales[index].transpose(1, 2)[..., None].float()
        return (self.codes[index] * scales).to(dtype)


CacheSide: TypeAlias = "Tensor | Int8Slots"
"""Keys or values of one layer in a cache: a float tensor [blocks, block_size, kv_heads, head_dim], or int8 numbers."""


def quantize_heads(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round keys or values to int8 with one scale per token and head, as the compiled kernel does.

    x: [tokens, kv_heads, head_dim].
    Returns codes like x, int8, and scales [tokens, kv_heads], bfloat16.
    """
    wide = x.float()
    size = wide.abs().amax(-1)
    finite = torch.isfinite(size)
    scales = torch.where(size > _SMALLEST_SIZE, size / _LARGEST_CODE, 0.0).to(torch.bfloat16)
    inverse = torch.where(finite & (scales > 0), 1.0 / scales.float(), 0.0)[..., None]
    codes = (torch.where(finite[..., None], wide, 0.0) * inverse).round().to(torch.int8)
    return codes, torch.where(finite, scales, torch.nan)
