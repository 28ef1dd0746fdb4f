"""Allocator of the blocks of a KV pool: allocate, share, copy on write, release, find by key. Holds no tensors.

Blocks have reference counts: beams share the blocks of their common tokens, and a shared block is copied only before
one of its owners writes into it (PagedAttention, Kwon et al. 2023, arXiv:2309.06180, section 4.4).
`free_blocks + used_blocks == num_blocks` holds after every call.

A block that was registered under a key can be found by the key, even after its release. Free blocks keep their content
until they are allocated again. Blocks without a key are allocated first, then the blocks released longest ago.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile


class OutOfBlocks(RuntimeError):
    """More blocks were requested than are free. A bug of the caller, which has to check first."""


class BlockManager:
    """The blocks 0..num_blocks-1 of one pool, each of `block_size` token slots.

    before_reuse: called by `allocate` with the free blocks that are about to lose their keys and their content.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks > 0 and block_size > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.before_reuse: Callable[[list[int]], None] | None = None
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks
        self._kept: dict[int, None] = {}
        """Free blocks with a key, in the order in which they will be reused."""
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def free_blocks(self) -> int:
        return len(self._free) + len(self._kept)

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - self.free_blocks

    @property
    def published_blocks(self) -> int:
        """Number of blocks that can be found by a key, in use or free."""
        return len(self._key_of)

    def blocks_for(self, tokens: int) -> int:
        """Number of blocks that hold `tokens` tokens, rounded up."""
        return -(-tokens // self.block_size)

    def references(self, block: int) -> int:
        """Number of block tables that hold a block; 0 for a free block."""
        return self._references[block]

    def allocate(self, count: int) -> list[int]:
        """Allocate free blocks. Raises OutOfBlocks, without allocating any, if too few are free."""
        if count > self.free_blocks:
            raise OutOfBlocks(f"{count} KV blocks requested, {self.free_blocks} of {self.num_blocks} are free")
        if count > len(self._free):
            reused = self.next_reused(count - len(self._free))
            if self.before_reuse is not None:
                self.before_reuse(reused)
            self.forget(reused)
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> list[int]:
        """Add an owner to each block. Returns the owner's block table, a new list of the same blocks.

        blocks: blocks in use, or free blocks that `find` has returned.
        """
        for block in blocks:
            if self._references[block] == 0:
                assert block in self._kept, f"block {block} is free and cannot be shared"
                del self._kept[block]
            self._references[block] += 1
        return list(blocks)

    def release(self, blocks: Sequence[int]) -> list[int]:
        """Remove an owner from each block. Returns the blocks that became free, because they have no owner left."""
        freed = []
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is released more often than it was taken"
            self._references[block] -= 1
            if self._references[block] == 0:
                freed.append(block)
        # A block is useless without the blocks before it, so the last block of a text is reused first.
        for block in reversed(freed):
            if block in self._key_of:
                self._kept[block] = None
            else:
                self._free.append(block)
        return freed

    def publish(self, block: int, key: bytes) -> None:
        """Register a full block under a key, so that `find` returns it. The block must be in use.

        No effect if the key has a block or the block has a key.
        """
        assert self._references[block] > 0, f"block {block} is free and holds nothing"
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """Blocks registered under the leading keys, up to the first key without a block.

        Free blocks among them stay free until `share` is called.
        """
        blocks = (self._block_of.get(key) for key in keys)
        return [block for block in takewhile(lambda block: block is not None, blocks) if block is not None]

    def is_published(self, block: int) -> bool:
        return block in self._key_of

    def key_of(self, block: int) -> bytes:
        """The key of a registered block."""
        return self._key_of[block]

    def next_reused(self, count: int) -> list[int]:
        """The first `count` free blocks with a key, in the order of their reuse; all if they are fewer."""
        return list(islice(self._kept, count))

    def forget(self, blocks: Iterable[int]) -> None:
        """Remove the keys of blocks, so that `find` cannot return them. The blocks may be in use or free."""
        for block in blocks:
            key = self._key_of.pop(block, None)
            if key is not None:
                del self._block_of[key]
            if block in self._kept:
                del self._kept[block]
                self._free.append(block)

    def forget_all(self) -> None:
        """Remove the keys of all blocks, so that `find` finds none."""
        self.forget(list(self._key_of))

    def blocks_to_write(self, tables: Sequence[Sequence[int]], position: int) -> int:
        """Number of free blocks needed to write the token at `position` in every table.

        Counts new blocks, and copies of shared blocks. Exact if all owners of a shared block are among the tables. This
        holds for the beams of a group.
        """
        index = position // self.block_size
        written = {table[index] for table in tables if len(table) > index}
        fresh = sum([len(table) <= index for table in tables])
        return fresh + sum([self._references[block] - 1 for block in written])

    def make_writable(self, table: list[int], position: int) -> tuple[int, int] | None:
        """Prepare a block table for writing the token at `position`, at most the first position after its last block.

        Appends a block if the table is full. Replaces a shared block by a new one, and returns (source, destination):
        the caller copies the block before writing. Returns None if no copy is needed.
        Raises OutOfBlocks if a block is needed and none is free.
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
