"""Which blocks groups hold: found, taken, branched for beams, published, given back. Knows groups and pools.

Full blocks whose keys and values are known to be good are found by what they hold: a group starts where its text
leaves those of earlier ones (docs/decisions/0017-prefix-cache.md). What nobody finite spoke for is told to be cleaned
before others use it. Knows no queue, no budget and no step.
"""

from __future__ import annotations

from collections.abc import Iterable

from server.engine.block_manager import BlockManager
from server.engine.prefix_keys import extend_keys
from server.engine.sequence import CachedSequence, SequenceGroup, common_length


class BlockTables:
    """The groups' side of one model's pools. cross_pool: blocks for encoded sources, None for a decoder.

    prefix_cache: whether groups may share the blocks of their common beginning; to be left off where keys and values
    of a token depend on more than it and those before it. A decoder that looks at a source is such a case, and never
    shares.
    """

    def __init__(self, self_pool: BlockManager, cross_pool: BlockManager | None, prefix_cache: bool = False) -> None:
        self.self_pool = self_pool
        self.cross_pool = cross_pool
        self.prefix_cache = prefix_cache and cross_pool is None
        self.num_wasted_tokens = 0
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0
        self._suspect_self_blocks: list[int] = []
        self._suspect_cross_blocks: list[int] = []

    def refusal(self, group: SequenceGroup) -> str | None:
        """Why the pools could not hold a group even alone, or None."""
        tokens = group.num_prompt_tokens + group.max_new_tokens
        worst = group.max_rows * self.self_pool.blocks_for(tokens)
        if worst > self.self_pool.num_blocks:
            return (
                f"{group.max_rows} x {tokens} tokens need {worst} KV blocks of {self.self_pool.block_size} tokens; "
                f"there are {self.self_pool.num_blocks}"
            )
        if self.cross_pool is not None:
            source = self.cross_pool.blocks_for(group.num_source_tokens)
            if source > self.cross_pool.num_blocks:
                return f"the source needs {source} KV blocks; there are {self.cross_pool.num_blocks}"
        return None

    # ------------------------------------------------------------------------------------------- to begin with

    def find(self, group: SequenceGroup) -> list[int]:
        """Blocks that hold what the group's first row begins with.

        The last token is left, since its logits are wanted; of beams, which decode together, one more. The hidden
        states of a prompt that is to be scored are in no cache.
        """
        if not self._may_share(group):
            return []
        row, size = group.sequences[0], self.self_pool.block_size
        extend_keys(row.block_keys, group.root_key, row.tokens, size)
        left = 1 if len(group.sequences) == 1 else 2
        return self.self_pool.find(row.block_keys[: (group.num_tokens - left) // size])

    def is_being_computed(self, group: SequenceGroup, found: int, running: Iterable[SequenceGroup]) -> bool:
        """Whether a running group is computing the very block that this one lacks first, with `found` found.

        To wait for it costs nothing: it was admitted earlier, so the budget of prefills is its own until it is done.
        """
        if not self._may_share(group):
            return False
        lacking = group.sequences[0].block_keys[found : (group.num_tokens - 1) // self.self_pool.block_size][:1]
        firsts = [other.sequences[0] for other in running]
        return any(key in row.block_keys[row.published_blocks :] for key in lacking for row in firsts)

    def fits(self, group: SequenceGroup, found: list[int]) -> bool:
        """Whether there are blocks for all that `take` would take."""
        pool = self.self_pool
        shared = group.common_tokens() // pool.block_size if len(group.sequences) > 1 else 0
        needed = shared + len(group.sequences) * (pool.blocks_for(group.num_tokens) - shared)
        needed -= sum(pool.references(block) > 0 for block in found)
        if needed > pool.free_blocks:
            return False
        if self.cross_pool is None or group.cross_block_table:
            return True
        return self.cross_pool.blocks_for(group.num_source_tokens) <= self.cross_pool.free_blocks

    def take(self, group: SequenceGroup, found: list[int]) -> None:
        """Blocks for all tokens that the group has, so that catching up never runs out of them; first those found."""
        pool = self.self_pool
        first, *others = group.sequences
        blocks = pool.blocks_for(group.num_tokens)
        first.block_table = pool.share(found)
        first.block_table += pool.allocate(blocks - len(found))
        first.num_computed_tokens = first.verified_tokens = len(found) * pool.block_size
        first.published_blocks = len(found)
        if group.cached_tokens is None and self._may_share(group):
            group.cached_tokens = first.num_computed_tokens
            self.num_prefix_queries += group.num_prompt_tokens
            self.num_prefix_hits += group.cached_tokens
        if others:
            shared = group.common_tokens() // pool.block_size
            group.shared_tokens = shared * pool.block_size
            for row in others:
                row.block_table = pool.share(first.block_table[:shared]) + pool.allocate(blocks - shared)
                row.num_computed_tokens = group.shared_tokens
                row.verified_tokens = min(first.verified_tokens, group.shared_tokens)
                row.published_blocks = min(len(found), shared)
        # What can still be found in the cache was not wasted.
        kept = sum(row.num_computed_tokens for row in group.sequences)
        self.num_wasted_tokens += max(group.preempted_tokens - kept, 0)
        group.preempted_tokens = 0
        if self.cross_pool is not None and not group.cross_block_table:
            needed = self.cross_pool.blocks_for(group.num_source_tokens)
            group.cross_block_table = self.cross_pool.allocate(needed)

    def _may_share(self, group: SequenceGroup) -> bool:
        return self.prefix_cache and not group.reports_prompt_logprobs

    # ----------------------------------------------------------------------------------------------- on the way

    def lacks_blocks(self, group: SequenceGroup) -> bool:
        """Whether fewer blocks are free than the next token of each row needs."""
        tables = [row.block_table for row in group.sequences]
        return self.self_pool.blocks_to_write(tables, group.num_tokens - 1) > self.self_pool.free_blocks

    def make_writable(self, group: SequenceGroup) -> list[tuple[int, int, int, int]]:
        """Room for the next token of each row. Returns what is to be copied before that, as `Schedule` has it."""
        position = group.num_tokens - 1
        copies, group.copies = group.copies, []
        for row in group.sequences:
            copy = self.self_pool.make_writable(row.block_table, position)
            if copy is not None:
                copies.append((*copy, 0, position % self.self_pool.block_size))
        return copies

    def extend(self, row: CachedSequence, num_tokens: int) -> int:
        """Room for so many guesses behind a row's tokens, or for as many as there are blocks for: their number."""
        pool = self.self_pool
        room = (len(row.block_table) + pool.free_blocks) * pool.block_size - len(row.tokens)
        count = max(min(num_tokens, room), 0)
        needed = pool.blocks_for(len(row.tokens) + count) - len(row.block_table)
        row.block_table += pool.allocate(max(needed, 0))
        return count

    def shorten(self, row: CachedSequence) -> None:
        """Give back the blocks behind the computed tokens of a row: its guesses have been judged."""
        kept = self.self_pool.blocks_for(row.num_computed_tokens)
        self.self_pool.release(row.block_table[kept:])
        del row.block_table[kept:]

    def fork(self, group: SequenceGroup, parents: list[int]) -> None:
        """Replace the rows of a group by its new beams: row i goes on from old row `parents[i]`.

        The first child of a row takes its blocks over. The others share those that are full, and have the last one of a
        row that nobody goes on from: what that does not hold already is copied into it before the next step.
        """
        assert group.beams is not None
        old, heirs = group.sequences, set(parents)
        prompt = old[0].tokens[: group.num_prompt_tokens]
        ended = [row for index, row in enumerate(old) if index not in heirs]
        group.sequences = []
        for beam, parent in zip(group.beams.running, parents, strict=True):
            row = old[parent]
            if parent in heirs:
                heirs.remove(parent)
                table, keys = row.block_table, row.block_keys
            else:
                table, keys = self._branch(group, row, ended), list(row.block_keys)
            group.sequences.append(
                CachedSequence(
                    [*prompt, *beam.tokens],
                    row.num_computed_tokens,
                    table,
                    keys,
                    row.published_blocks,
                    verified_tokens=row.verified_tokens,
                )
            )
        for row in ended:
            self.self_pool.release(row.block_table)

    def _branch(self, group: SequenceGroup, row: CachedSequence, ended: list[CachedSequence]) -> list[int]:
        """A block table for one more beam that goes on from a row, its last block one of `ended` if there is any."""
        pool, done = self.self_pool, row.num_computed_tokens
        full = done // pool.block_size
        spare = next((one for one in ended if len(one.block_table) > full), None)
        if full == len(row.block_table) or spare is None or pool.references(spare.block_table[full]) > 1:
            return pool.share(row.block_table)
        # Beams part late: most of what the block is to hold is the same in both texts.
        common = common_length(row.tokens, spare.tokens, done)
        block = spare.block_table.pop()
        first = max(common - full * pool.block_size, 0)
        group.copies.append((row.block_table[full], block, first, done - full * pool.block_size))
        return [*pool.share(row.block_table[:full]), block]

    def publish(self, group: SequenceGroup) -> None:
        """Finite logits have spoken for all that a group has computed: others may read its full blocks."""
        for row in group.sequences:
            row.verified_tokens = row.num_computed_tokens
        if not self.prefix_cache:
            return
        size = self.self_pool.block_size
        for row in group.sequences:
            full = row.num_computed_tokens // size
            if full > row.published_blocks:
                extend_keys(row.block_keys, group.root_key, row.tokens, size)
                for index in range(row.published_blocks, full):
                    self.self_pool.publish(row.block_table[index], row.block_keys[index])
                row.published_blocks = full

    # ---------------------------------------------------------------------------------------------- in the end

    def release(self, group: SequenceGroup, corrupt: bool = False) -> None:
        """Give back all of a group's blocks. corrupt: what is in them, found or its own, may be anything."""
        if corrupt:
            self.self_pool.forget(block for row in group.sequences for block in row.block_table)
        suspect = corrupt or not group.is_verified
        self._release_rows(group, suspect)
        if self.cross_pool is not None:
            freed = self.cross_pool.release(group.cross_block_table)
            group.cross_block_table = []
            if suspect:
                self._suspect_cross_blocks += freed

    def set_back(self, group: SequenceGroup) -> None:
        """Give back the blocks of a group that will be computed again; its source stays."""
        self._release_rows(group, not group.is_verified)

    def _release_rows(self, group: SequenceGroup, suspect: bool) -> None:
        for row in group.sequences:
            freed = self.self_pool.release(row.block_table)
            row.block_table, row.draft = [], []
            row.num_computed_tokens = row.published_blocks = row.verified_tokens = 0
            if suspect:
                self._suspect_self_blocks += [block for block in freed if not self.self_pool.is_published(block)]
        group.shared_tokens = 0
        group.copies = []

    def take_blocks_to_clear(self) -> tuple[list[int], list[int]]:
        """Free `self` and `cross` blocks to zero before use: no finite logits ever spoke for what is in them."""
        suspects = self._suspect_self_blocks, self._suspect_cross_blocks
        self._suspect_self_blocks, self._suspect_cross_blocks = [], []
        return suspects
