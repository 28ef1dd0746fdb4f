"""Who owns which block of a KV pool: allocate, share, copy on write, release. Holds numbers, no tensors.

Blocks are counted by reference: beams share the blocks of their common past, and a shared block is copied only when one
of its owners is about to write into it (PagedAttention, Kwon et al. 2023, arXiv:2309.06180, section 4.4).
`free_blocks + used_blocks == num_blocks` holds after every call. Does not know sequences, only their block tables.
"""

from __future__ import annotations

from collections.abc import Sequence


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

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-tokens // self.block_size)

    def references(self, block: int) -> int:
        """How many block tables hold a block; 0 for a free one."""
        return self._references[block]

    def allocate(self, count: int) -> list[int]:
        """Take free blocks. Raises OutOfBlocks, and takes none, when there are not enough."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} KV blocks wanted, {len(self._free)} of {self.num_blocks} are free")
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> list[int]:
        """One more owner for each block. Returns a table of its own for that owner."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is free and cannot be shared"
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
        self._free.extend(freed)
        return freed

    def blocks_to_write(self, tables: Sequence[Sequence[int]], position: int) -> int:
        """Free blocks that `make_writable` will take for all these tables: new ones and copies of shared ones.

        Exact when every owner of a shared block is among the tables, as it is for the beams of a group.
        """
        index = position // self.block_size
        fresh = sum(len(table) <= index for table in tables)
        shared = {table[index] for table in tables if len(table) > index}
        return fresh + sum(self._references[block] - 1 for block in shared)

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
