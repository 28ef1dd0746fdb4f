"""Who owns which block of a KV pool: allocate, share, copy on write, release, find again. Holds numbers, no tensors.

Blocks are counted by reference: beams share the blocks of their common past, and a shared block is copied only when one
of its owners is about to write into it (PagedAttention, Kwon et al. 2023, arXiv:2309.06180, section 4.4).
`free_blocks + used_blocks == num_blocks` holds after every call. Does not know sequences, only their block tables.

A block whose content was published under a key can be found by it, while it is owned and after: free blocks keep their
content until they are needed, those without a key first, then those that were released the longest time ago.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, takewhile


class OutOfBlocks(RuntimeError):
    """More blocks were asked for than are free: the caller did not look first."""


class BlockManager:
    """The blocks 0..num_blocks-1 of one pool, each of `block_size` token slots."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks > 0 and block_size > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks
        self._kept: dict[int, None] = {}
        """Free blocks with a key, in the order in which they will be given up."""
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def free_blocks(self) -> int:
        return len(self._free) + len(self._kept)

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - self.free_blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-tokens // self.block_size)

    def references(self, block: int) -> int:
        """How many block tables hold a block; 0 for a free one."""
        return self._references[block]

    def allocate(self, count: int) -> list[int]:
        """Take free blocks. Raises OutOfBlocks, and takes none, when there are not enough."""
        if count > self.free_blocks:
            raise OutOfBlocks(f"{count} KV blocks wanted, {self.free_blocks} of {self.num_blocks} are free")
        if count > len(self._free):
            self.forget(list(islice(self._kept, count - len(self._free))))
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> list[int]:
        """One more owner for each block, which somebody owns or `find` has found. Returns a table for that owner."""
        for block in blocks:
            assert self._references[block] > 0 or block in self._kept, f"block {block} is free and cannot be shared"
            self._kept.pop(block, None)
            self._references[block] += 1
        return list(blocks)

    def release(self, blocks: Sequence[int]) -> list[int]:
        """One owner less for each block. Returns those that nobody owns any more, now free."""
        freed = []
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is released more often than it was taken"
            self._references[block] -= 1
            if self._references[block] == 0:
                freed.append(block)
        # A block is of no use without those before it: the last one of a text is given up first.
        for block in reversed(freed):
            if block in self._key_of:
                self._kept[block] = None
            else:
                self._free.append(block)
        return freed

    def publish(self, block: int, key: bytes) -> None:
        """Let an owned block, filled for good, be found by what it holds. Of blocks that hold the same the first is."""
        assert self._references[block] > 0, f"block {block} is free and holds nothing"
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of the leading keys, as far as all of them are there. They stay free until `share` takes them."""
        blocks = (self._block_of.get(key) for key in keys)
        return [block for block in takewhile(lambda block: block is not None, blocks) if block is not None]

    def is_published(self, block: int) -> bool:
        return block in self._key_of

    def forget(self, blocks: Iterable[int]) -> None:
        """Let blocks, owned or free, not be found any more."""
        for block in blocks:
            key = self._key_of.pop(block, None)
            if key is not None:
                del self._block_of[key]
            if block in self._kept:
                del self._kept[block]
                self._free.append(block)

    def blocks_to_write(self, tables: Sequence[Sequence[int]], position: int) -> int:
        """Free blocks that `make_writable` will take for all these tables: new ones and copies of shared ones.

        Exact when every owner of a shared block is among the tables, as it is for the beams of a group.
        """
        index = position // self.block_size
        written = {table[index] for table in tables if len(table) > index}
        fresh = sum([len(table) <= index for table in tables])
        return fresh + sum([self._references[block] - 1 for block in written])

    def make_writable(self, table: list[int], position: int) -> tuple[int, int] | None:
        """Let the owner of a table write its token `position`, the next one or one that it has room for.

        Adds a block where the table ends, and replaces a shared block by one of its own; then returns (source,
        destination), to be copied before anything is written. Raises OutOfBlocks.
        """
        index = position // self.block_size
        assert index <= len(table), f"position {position} lies beyond the next block of a table of {len(table)}"
        if index == len(table):
            table.extend(self.allocate(1))
            return None
        source = table[index]
        if self._references[source] == 1:
            return None
        (table[index],) = self.allocate(1)
        self.release([source])
        return source, table[index]
