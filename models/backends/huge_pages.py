"""Allocate memory in pages of 2 MiB: for weights, which matrix products read from end to end, and for scratch memory.

With pages of 4 KiB, a processor spends more time on looking up addresses than on reading, above all in a virtual
machine. Everything here is advice to the kernel of the operating system, which uses small pages if it has no huge
pages.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20

_REGION_BYTES = 128 * HUGE_PAGE_BYTES
"""Size of a region of memory that several tensors share. A page of the region takes memory only after its first
write."""

_MAX_SHARED_BYTES = 16 * HUGE_PAGE_BYTES
"""Size of the largest tensor in a shared region. Larger tensors have separate memory, so that little of a region stays
unused."""

_ALIGNMENT_BYTES = 64
"""Size of a cache line. Each tensor in a region begins at a multiple of it."""

_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
"""Advice to Linux: use huge pages from now on; copy the present pages to huge pages (Linux 6.1). From
asm-generic/mman-common.h."""

_MAP_FIXED, _FAILED = 0x10, ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def empty_in_huge_pages(count: int, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Uninitialised memory for `count` numbers on the CPU, in huge pages where the system has them.

    Tensors of up to 32 MiB lie side by side in regions, because most weights of a small model fill no huge page. The
    memory of a region is given back when none of its tensors is left. Threads do not share regions. Models that
    different threads load therefore never share a region.

    like: its dtype is used unless `dtype` is given. If it is a meta tensor, the result is a meta tensor too.
    Raises MemoryError if the system has not enough memory.
    """
    dtype = dtype or like.dtype
    size = count * dtype.itemsize
    if like.is_meta or size == 0:
        return like.new_empty(count, dtype=dtype)
    if size > _MAX_SHARED_BYTES:
        return bytes_in_huge_pages(size).view(dtype)
    buffer, offset = _regions.take(size)
    return torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset)


def bytes_in_huge_pages(size: int) -> Tensor:
    """An uninitialised uint8 tensor, [size], in a separate memory mapping, in huge pages where the system has them.

    size: at least 1. Raises MemoryError if the system has not enough memory.
    """
    return torch.frombuffer(_new_mapping(size), dtype=torch.uint8)


class _Regions(threading.local):
    """Allocator of small tensors of one thread: reserves the parts of a shared region one after another."""

    def __init__(self) -> None:
        self._newest: weakref.ref[ctypes.Array[ctypes.c_char]] | None = None
        self._used = 0

    def take(self, size: int) -> tuple[ctypes.Array[ctypes.c_char], int]:
        """Reserve `size` bytes. Returns the region, and the offset in it of the first byte.

        Raises MemoryError if a new region is needed and the system has not enough memory.
        """
        region = self._newest() if self._newest is not None else None
        if region is None or self._used + size > _REGION_BYTES:
            region, self._used = _new_mapping(_REGION_BYTES), 0
            self._newest = weakref.ref(region)
        offset = self._used
        self._used = -(-(offset + size) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return region, offset


_regions = _Regions()


def _new_mapping(size: int) -> ctypes.Array[ctypes.c_char]:
    # A new mapping has no pages yet. Memory of the allocator may have small pages from an earlier use.
    start = _map(size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    if start is None:
        raise MemoryError(f"no memory for {size:,} bytes")
    _libc.madvise(start, size, _MADV_HUGEPAGE)
    return _buffer(start, size)


def map_in_huge_pages(descriptor: int, size: int) -> ctypes.Array[ctypes.c_char]:
    """Map a file in memory, read-only, in huge pages. The mapping ends when nothing refers to the result.

    descriptor: of the open file. size: number of bytes to map.
    Raises OSError if the file cannot be mapped.
    """
    start = _map(size, mmap.PROT_READ, mmap.MAP_SHARED | mmap.MAP_POPULATE, descriptor)
    if start is None:
        raise OSError("the weights cannot be mapped")
    _libc.madvise(start, size, _MADV_COLLAPSE)
    return _buffer(start, size)


def _map(size: int, protection: int, flags: int, descriptor: int) -> int | None:
    """Map memory at a multiple of the size of a huge page. Returns the address, or None if the system refuses."""
    reserved = _libc.mmap(None, size + HUGE_PAGE_BYTES, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if reserved == _FAILED:
        return None
    start = -(-reserved // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    end = start + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    mapped = _libc.mmap(start, size, protection, flags | _MAP_FIXED, descriptor, 0) != _FAILED
    for first, last in ((reserved, start), (end if mapped else start, reserved + size + HUGE_PAGE_BYTES)):
        if first < last:
            _libc.munmap(first, last - first)
    return start if mapped else None


def _buffer(start: int, size: int) -> ctypes.Array[ctypes.c_char]:
    buffer = (ctypes.c_char * size).from_address(start)
    # At exit the process ends with its mappings, and threads may still read them.
    weakref.finalize(buffer, _libc.munmap, start, size).atexit = False
    return buffer
