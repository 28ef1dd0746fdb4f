"""Keeps contents of KV blocks in host memory when the device needs the blocks for other tokens. Holds no tensors.

A block of the prefix cache that is about to be reused is copied to a slot of host memory, under the same key. The key
contains the salt of the client and the adapter. Each model has a pool of its own. A later sequence with this text gets
the copy back in a new block of the device, if the copy's checksum is right. Otherwise its tokens are computed again.
Slots are managed like blocks: the least recently used one is overwritten. See
docs/decisions/0189-prefixes-in-host-memory.md.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from server.engine.cache.block_manager import BlockManager

BLOCKS_TOGETHER = 16
"""Number of blocks that are copied together when one block must be copied: the next ones that the device will reuse.

The cost of a copy hardly depends on its size, and decoding rows need one block at a time.
"""


class CopyFailed(Exception):
    """Blocks could not be copied, because the device has no memory for the copy. Their tokens are computed again."""


class BlockCopies(Protocol):
    """Copies blocks of one model between the device and the slots of host memory (`HostBlocks`).

    Both methods raise CopyFailed.
    """

    def to_host(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copy block `blocks[i]` to slot `slots[i]`, for every i."""

    def to_device(self, slots: Sequence[int], blocks: Sequence[int]) -> list[bool]:
        """Copy slot `slots[i]` to block `blocks[i]`, for every i. Returns for each i whether the checksum is right."""


class HostPool:
    """The slots of host memory for the prefix cache of one model.

    pool: the blocks of the device, which this object copies before they are reused.
    num_slots: number of blocks for which the host has memory. slot_bytes: memory of one slot.
    num_spilled: number of blocks that were copied to the host so far.
    num_restored: number of blocks that were copied back to the device.
    num_damaged: number of copies that were dropped because their checksum was wrong.
    """

    def __init__(self, pool: BlockManager, num_slots: int, copies: BlockCopies, slot_bytes: int = 0) -> None:
        self.slot_bytes = slot_bytes
        self.num_spilled = self.num_restored = self.num_damaged = 0
        self._restoring_seconds = 0.0
        self._pool, self._copies = pool, copies
        self._slots = BlockManager(num_slots, pool.block_size)
        pool.before_reuse = self._spill

    @property
    def num_slots(self) -> int:
        return self._slots.num_blocks

    @property
    def used_slots(self) -> int:
        """Number of slots that hold the content of a block."""
        return self._slots.published_blocks

    def hold(self, keys: Sequence[bytes]) -> list[int]:
        """Slots with copies of the blocks under the leading keys, up to the first key without a copy.

        Nothing overwrites the slots before `restore`.
        """
        return self._slots.share(self._slots.find(keys))

    def count(self, keys: Sequence[bytes]) -> int:
        """Number of slots that `hold` would return."""
        return len(self._slots.find(keys))

    def restore(self, slots: Sequence[int], keys: Sequence[bytes], blocks: Sequence[int]) -> int:
        """Copy slots back to blocks of the device, and register these blocks under their keys.

        slots: result of `hold` for `keys`. blocks: allocated blocks, which nothing else uses.
        Returns the number of leading blocks with a right checksum. The blocks after them may contain anything; copies
        with a wrong checksum are dropped. Returns 0 if the device has no memory for copying, and keeps the copies.
        """
        began = time.monotonic()
        try:
            is_right = self._copies.to_device(slots, blocks)
        except CopyFailed:
            self._slots.release(slots)
            return 0
        self._restoring_seconds += time.monotonic() - began
        self._slots.release(slots)
        damaged = [slot for slot, right in zip(slots, is_right, strict=True) if not right]
        self._slots.forget(damaged)
        self.num_damaged += len(damaged)
        count = len(list(takewhile(bool, is_right)))
        for block, key in zip(blocks[:count], keys[:count], strict=True):
            self._pool.publish(block, key)
        self.num_restored += count
        return count

    def take_seconds(self) -> float:
        """Seconds that copies back to the device have taken since the last call.

        They do not count as time of a step.
        """
        seconds, self._restoring_seconds = self._restoring_seconds, 0.0
        return seconds

    def forget(self, keys: Sequence[bytes]) -> None:
        """Drop the copies under these keys, because the contents may be wrong."""
        self._slots.forget([slot for key in keys for slot in self._slots.find([key])])

    def _spill(self, reused: list[int]) -> None:
        """Copy blocks that are about to be reused, and the blocks that will be reused after them, to the host.

        A block that has a copy on the host is not copied again.
        If there are too few free slots, the blocks nearest to the beginnings of their texts are copied. The other
        blocks would be useless without them.
        """
        if all(self._has_copy(block) for block in reused):
            return
        ahead = self._pool.next_reused(max(len(reused), BLOCKS_TOGETHER))
        blocks = [block for block in ahead if not self._has_copy(block)]
        # The blocks of a text are in the order of reuse: the last one first.
        blocks = blocks[::-1][: self._slots.free_blocks]
        slots = self._slots.allocate(len(blocks))
        try:
            self._copies.to_host(blocks, slots)
        except CopyFailed:
            self._slots.release(slots)
            return
        for slot, block in zip(slots, blocks, strict=True):
            self._slots.publish(slot, self._pool.key_of(block))
        self._slots.release(slots)
        self.num_spilled += len(blocks)

    def _has_copy(self, block: int) -> bool:
        return bool(self._slots.find([self._pool.key_of(block)]))
