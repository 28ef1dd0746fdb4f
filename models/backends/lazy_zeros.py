"""Tensors of zeros whose memory is taken only where they are written: for caches, which are seldom full."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

MIN_LAZY_BYTES = 1 << 20
"""Size of the smallest lazy tensor. A smaller tensor is filled with zeros at once, which costs less than a memory
mapping."""

_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of zeros. On a CPU, each page of a large tensor takes memory only after its first write.

    Filling a cache of 1 GiB with zeros takes up to 4 s in a virtual machine. Raises OSError or RuntimeError if the
    system has not enough memory.
    """
    size = prod(shape) * dtype.itemsize
    if not _is_lazy(size, device):
        return torch.zeros(*shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)


def give_back_pages(tensor: Tensor) -> None:
    """Return the memory of a tensor that `lazy_zeros` made to the system. On Linux the tensor is then zero again.

    Its contents must not be needed any more. A small tensor, and one on another device, keeps its memory and contents.
    """
    if _is_lazy(tensor.nbytes, tensor.device):
        _libc.madvise(tensor.data_ptr(), tensor.nbytes, mmap.MADV_DONTNEED)


def _is_lazy(size: int, device: torch.device) -> bool:
    return device.type == "cpu" and size >= MIN_LAZY_BYTES
