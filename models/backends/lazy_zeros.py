"""Tensors of zeros whose memory is taken only where they are written: for caches, which are seldom full."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

MIN_LAZY_BYTES = 1 << 20
"""Size of the smallest lazy tensor. A smaller one is filled at once, because a memory mapping would cost more than the
zeros."""


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of zeros. On a CPU, a page of a large one takes memory after its first write.

    Filling a cache of 1 GiB with zeros takes up to 4 s in a virtual machine. Raises OSError or RuntimeError if the
    system has not enough memory.
    """
    size = prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < MIN_LAZY_BYTES:
        return torch.zeros(*shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)
