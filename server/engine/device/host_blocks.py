"""Copies KV blocks of one model to host memory and back, with a checksum that is made and compared on the device.

All copies are in the stream of the steps, so that a block is copied after the step that wrote it, and before the step
that writes it again. The host waits for the device only to read whether the checksums are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from models.steps.kv_cache import KVCache
from server.engine.cache.host_pool import CopyFailed
from server.engine.device.locked_memory import lock_pages

STAGING_BYTES = 32 << 20
"""Most memory on the device for blocks that are copied together, unless one block needs more.

Computing the checksum of these blocks needs the same amount again.
"""
_WORD = torch.int64
_DTYPES = (torch.int64, torch.int32, torch.int16, torch.uint8)
_MULTIPLIER = -0x61C8864680B583EB
"""2^64 divided by the golden ratio, as a signed number: its multiples are spread evenly over all numbers of 64 bits."""


class _BlockPart(NamedTuple):
    """The part of a block's copy that comes from one tensor of the cache.

    values: the tensor, viewed as [blocks, values per block] in the widest integer dtype that fits. Shares its memory.
    start, end: range of the part in the copy of a block, in values of this dtype.
    """

    values: Tensor
    start: int
    end: int


@contextmanager
def _copying() -> Iterator[None]:
    """Context manager and decorator that turns an out-of-memory error of the device into CopyFailed."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise CopyFailed(str(error)) from error


class HostBlocks:
    """Host memory for the blocks of one KV cache. Implements `BlockCopies`.

    cache: keys and values on the device. num_slots: number of blocks for which there is memory.
    The constructor raises RuntimeError if the system has too little memory, or does not let the process lock that much
    memory.
    """

    def __init__(self, cache: KVCache, num_slots: int) -> None:
        self._device = cache.device
        self._parts, words = _parts(cache)
        self.block_bytes = words * _WORD.itemsize
        self._memory = torch.empty(num_slots, words, dtype=_WORD)
        lock_pages(self._memory, self, self._device)
        self._checksums = torch.zeros(num_slots, dtype=_WORD, device=self._device)
        self._weights = torch.arange(words, dtype=_WORD, device=self._device).mul_(_MULTIPLIER).bitwise_or_(1)

    @torch.inference_mode()
    @_copying()
    def to_host(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copy block `blocks[i]` to slot `slots[i]`, for every i, and keep its checksum. Does not wait for the device.

        Raises CopyFailed.
        """
        for some_blocks, some_slots in self._together(blocks, slots):
            index = self._index(some_blocks)
            staged = torch.zeros(len(some_blocks), self._memory.shape[1], dtype=_WORD, device=self._device)
            for part in self._parts:
                staged.view(part.values.dtype)[:, part.start : part.end] = part.values[index]
            self._checksums[self._index(some_slots)] = self._checksum(staged)
            for row, slot in zip(staged, some_slots, strict=True):
                self._memory[slot].copy_(row, non_blocking=True)

    @torch.inference_mode()
    @_copying()
    def to_device(self, slots: Sequence[int], blocks: Sequence[int]) -> list[bool]:
        """Copy slot `slots[i]` to block `blocks[i]`, for every i. Returns for each i whether the checksum is right.

        Raises CopyFailed.
        """
        is_right = []
        for some_slots, some_blocks in self._together(slots, blocks):
            index = self._index(some_blocks)
            staged = torch.empty(len(some_slots), self._memory.shape[1], dtype=_WORD, device=self._device)
            for row, slot in zip(staged, some_slots, strict=True):
                row.copy_(self._memory[slot], non_blocking=True)
            for part in self._parts:
                part.values[index] = staged.view(part.values.dtype)[:, part.start : part.end]
            is_right.append(self._checksum(staged) == self._checksums[self._index(some_slots)])
        found: list[bool] = torch.cat(is_right).tolist()
        return found

    def _checksum(self, staged: Tensor) -> Tensor:
        """Checksum of each block: [blocks], int64. A block with one changed word always has another checksum.

        Each word is multiplied by an odd number of its own, and the products are added, both modulo 2^64.
        staged: copies of blocks, [blocks, words], int64.
        """
        return (staged * self._weights).sum(1)

    def _together(
        self, sources: Sequence[int], destinations: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Divide pairs of a source and a destination into batches that fit into the staging memory.

        Yields each batch.
        """
        count = max(STAGING_BYTES // max(self.block_bytes, 1), 1)
        for start in range(0, len(sources), count):
            yield sources[start : start + count], destinations[start : start + count]

    def _index(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64).to(self._device, non_blocking=True)


def block_bytes(cache: KVCache) -> int:
    """Host memory for one block of a cache, in bytes: its tensors, each filled up to whole words."""
    return _parts(cache)[1] * _WORD.itemsize


def _parts(cache: KVCache) -> tuple[list[_BlockPart], int]:
    """Describe the copy of one block: its parts, one for each tensor of the cache, and its number of 8-byte words.

    Each part begins at a word.
    """
    parts, words = [], 0
    for tensor in cache.tensors:
        flat = tensor.view(tensor.shape[0], -1)
        size = flat.shape[1] * flat.element_size()
        dtype = next(dtype for dtype in _DTYPES if size % dtype.itemsize == 0)
        values = flat.view(torch.uint8).view(dtype)
        start = words * (_WORD.itemsize // dtype.itemsize)
        parts.append(_BlockPart(values, start, start + values.shape[1]))
        words += -(-size // _WORD.itemsize)
    return parts, words
