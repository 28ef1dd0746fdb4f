"""Assigns KV blocks to sequence groups: allocates them, shares them, forks them for beams, registers them in the prefix
cache (publishes them), and frees them.

With a prefix cache a group reuses full blocks of earlier groups with the same text. Only verified blocks are reused:
the logits computed from them were finite. Freed blocks that were not verified are cleared before their next use.
With a `HostPool`, a prefix continues in host memory after its last block on the device.
See docs/decisions/0017-prefix-cache.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

from server.engine.beams.beam_lanes import BeamLanes
from server.engine.cache.block_manager import BlockManager
from server.engine.cache.host_pool import HostPool
from server.engine.cache.lane_blocks import SlotCopies, leave_lanes
from server.engine.sequences.prefix_keys import extend_keys
from server.engine.sequences.sequence import CachedSequence, SequenceGroup, common_length


class BlockTables:
    """The KV pools of one model, and the block tables of its groups.

    self_pool: blocks of self-attention.
    cross_pool: blocks of cross-attention for encoded sources; None for a decoder.
    prefix_cache: whether groups share the blocks of a common beginning. Ignored with cross-attention, because keys and
        values then depend on the source.
    host: copies of blocks of the prefix cache in host memory; None if blocks are not copied to host memory. Needs the
        prefix cache.
    """

    def __init__(self, self_pool: BlockManager, cross_pool: BlockManager | None, prefix_cache: bool = False) -> None:
        self.self_pool = self_pool
        self.cross_pool = cross_pool
        self.prefix_cache = prefix_cache and cross_pool is None
        self.host: HostPool | None = None
        self.num_wasted_tokens = 0
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0
        self._self_blocks_to_clear: list[int] = []
        self._cross_blocks_to_clear: list[int] = []

    @property
    def pools(self) -> dict[str, BlockManager]:
        """All pools, by name: `self`, and `cross` if the model has cross-attention."""
        return {"self": self.self_pool} | ({} if self.cross_pool is None else {"cross": self.cross_pool})

    def refusal(self, group: SequenceGroup) -> str | None:
        """Why a group does not fit the pools even if no other group uses them; None if it fits."""
        tokens = group.num_prompt_tokens + group.max_new_tokens
        worst = group.max_rows * self.self_pool.blocks_for(tokens)
        if worst > self.self_pool.num_blocks:
            return (
                f"{group.max_rows} x {tokens} tokens need {worst} KV blocks of {self.self_pool.block_size} tokens; "
                f"there are {self.self_pool.num_blocks} (--kv-cache-memory)"
            )
        if self.cross_pool is not None:
            source = self.cross_pool.blocks_for(group.num_source_tokens)
            if source > self.cross_pool.num_blocks:
                return (
                    f"the source needs {source} KV blocks; there are {self.cross_pool.num_blocks} (--kv-cache-memory)"
                )
        return None

    # --------------------------------------------------------------------------------------------- admission

    def find(self, group: SequenceGroup) -> list[int]:
        """Cached blocks with the leading tokens of the group's first sequence.

        The last token is never taken from the cache, because its logits are needed. For a group with several sequences
        (beams) the last two tokens are not taken. A group that reports its prompt's log-probabilities uses no cached
        block.
        """
        return self.self_pool.find(self._usable_keys(group))

    def _usable_keys(self, group: SequenceGroup) -> list[bytes]:
        """Keys of the leading full blocks that a group may take from the prefix cache."""
        if not self._uses_prefix_cache(group):
            return []
        row, size = group.sequences[0], self.self_pool.block_size
        extend_keys(row.block_keys, group.root_key, row.tokens, size)
        left = 1 if len(group.sequences) == 1 else 2
        return row.block_keys[: (group.num_tokens - left) // size]

    def num_cached(self, group: SequenceGroup, found: list[int]) -> int:
        """Number of leading blocks that a group need not compute: cached blocks, and copies in host memory after them.

        found: result of `find`.
        """
        return len(found) + (0 if self.host is None else self.host.count(self._usable_keys(group)[len(found) :]))

    def is_being_computed(self, group: SequenceGroup, found: int, running: Iterable[SequenceGroup]) -> bool:
        """Whether a running group is computing the first block that this group needs after `found` cached ones.

        Waiting for that block costs nothing, because the earlier group has the prefill budget until it is done.
        found: result of `num_cached`.
        """
        if not self._uses_prefix_cache(group):
            return False
        lacking = group.sequences[0].block_keys[found : (group.num_tokens - 1) // self.self_pool.block_size][:1]
        firsts = [other.sequences[0] for other in running]
        return any(key in row.block_keys[row.published_blocks :] for key in lacking for row in firsts)

    def fits(self, group: SequenceGroup, found: list[int]) -> bool:
        """Whether enough blocks are free to admit a group with `take`. found: cached blocks that the group reuses."""
        pool = self.self_pool
        shared = self._shared_blocks(group) if len(group.sequences) > 1 else 0
        needed = shared + len(group.sequences) * (pool.blocks_for(group.num_tokens) - shared)
        needed -= sum(pool.references(block) > 0 for block in found)
        return needed <= pool.free_blocks and not self.lacks_source_blocks(group)

    def lacks_source_blocks(self, group: SequenceGroup) -> bool:
        """Whether too few cross-attention blocks are free for the source of a group.

        False if the group has its blocks already.
        No preemption can free such blocks, because a preempted group keeps its encoded source. Only the end of another
        group can.
        """
        if self.cross_pool is None or group.cross_block_table:
            return False
        return self.cross_pool.blocks_for(group.num_source_tokens) > self.cross_pool.free_blocks

    def take(self, group: SequenceGroup, found: list[int]) -> None:
        """Allocate blocks for a group that is admitted: for the tokens of each sequence, and for the group's source.

        found: cached blocks with the first tokens of the text, from `find`. They come first in the block tables.
        """
        pool = self.self_pool
        first, *others = group.sequences
        blocks = pool.blocks_for(group.num_tokens)
        cached = self._take_first(group, found)
        first.num_computed_tokens = first.verified_tokens = cached * pool.block_size
        first.published_blocks = cached
        if group.cached_tokens is None and self._uses_prefix_cache(group):
            group.cached_tokens = first.num_computed_tokens
            self.num_prefix_queries += group.num_prompt_tokens
            self.num_prefix_hits += group.cached_tokens
        if others:
            shared = self._shared_blocks(group)
            group.shared_tokens = shared * pool.block_size
            for row in others:
                row.block_table = pool.share(first.block_table[:shared]) + pool.allocate(blocks - shared)
                row.num_computed_tokens = group.shared_tokens
                row.verified_tokens = min(first.verified_tokens, group.shared_tokens)
                row.published_blocks = min(cached, shared)
        # Tokens of a preempted group that are still in the prefix cache were not wasted.
        kept = sum(row.num_computed_tokens for row in group.sequences)
        self.num_wasted_tokens += max(group.preempted_tokens - kept, 0)
        group.preempted_tokens = 0
        if self.cross_pool is not None and not group.cross_block_table:
            needed = self.cross_pool.blocks_for(group.num_source_tokens)
            group.cross_block_table = self.cross_pool.allocate(needed)

    def _take_first(self, group: SequenceGroup, found: list[int]) -> int:
        """Create the block table of a group's first sequence. Blocks with a copy in host memory are filled from it.

        found: cached blocks, from `find`. Returns the number of leading blocks whose tokens need not be computed.
        """
        pool, row = self.self_pool, group.sequences[0]
        keys = [] if self.host is None else self._usable_keys(group)[len(found) :]
        # The copies are held before blocks are allocated, because an allocation may overwrite copies.
        slots = [] if self.host is None else self.host.hold(keys)
        row.block_table = pool.share(found)
        row.block_table += pool.allocate(pool.blocks_for(group.num_tokens) - len(found))
        if self.host is None or not slots:
            return len(found)
        restored = row.block_table[len(found) : len(found) + len(slots)]
        count = self.host.restore(slots, keys[: len(slots)], restored)
        # A damaged copy may contain NaN. A right one must not be cleared any more.
        waiting = [block for block in self._self_blocks_to_clear if block not in restored]
        self._self_blocks_to_clear = waiting + restored[count:]
        return len(found) + count

    def _shared_blocks(self, group: SequenceGroup) -> int:
        """Number of leading blocks that the beams of a group share when the group is computed again."""
        return group.common_tokens() // self.self_pool.block_size

    def _uses_prefix_cache(self, group: SequenceGroup) -> bool:
        return self.prefix_cache and not group.reports_prompt_logprobs

    # ------------------------------------------------------------------------------------------------- decoding

    def lacks_blocks(self, group: SequenceGroup) -> bool:
        """Whether too few blocks are free for the next token of each sequence."""
        if group.num_tokens <= group.writable_tokens:
            return False
        tables = [row.block_table for row in group.sequences]
        return self.self_pool.blocks_to_write(tables, group.num_tokens - 1) > self.self_pool.free_blocks

    def make_writable(self, group: SequenceGroup) -> list[tuple[int, int, int, int]]:
        """Prepare the block table of each sequence for writing its last token, which the next step computes.

        Returns the copies to make before that, as in `Schedule.copies`: (source block, destination block, first slot,
        end slot).
        """
        copies, group.copies = group.copies, []
        position, size = group.num_tokens - 1, self.self_pool.block_size
        if position >= group.writable_tokens:
            found = [self.self_pool.make_writable(row.block_table, position) for row in group.sequences]
            copies += [(*copy, 0, position % size) for copy in found if copy is not None]
            group.writable_tokens = position - position % size + size
        return copies

    def extend(self, row: CachedSequence, num_tokens: int) -> int:
        """Allocate blocks for up to `num_tokens` draft tokens of a sequence. Returns how many tokens have a slot."""
        pool = self.self_pool
        room = (len(row.block_table) + pool.free_blocks) * pool.block_size - len(row.tokens)
        count = max(min(num_tokens, room), 0)
        needed = pool.blocks_for(len(row.tokens) + count) - len(row.block_table)
        row.block_table += pool.allocate(max(needed, 0))
        return count

    def extend_each(self, rows: Sequence[CachedSequence]) -> bool:
        """Make room in the block tables for one more token of each sequence, beyond the token that is being computed.

        Returns False, and allocates no block, if too few are free.
        """
        size = self.self_pool.block_size
        # Only a token that begins a block can lack it. The other rows, which are most, cost no call.
        begin = [row for row in rows if (row.num_computed_tokens + 1) % size == 0]
        lacking = [row for row in begin if len(row.block_table) * size <= len(row.tokens)]
        if len(lacking) > self.self_pool.free_blocks:
            return False
        for row in lacking:
            row.block_table += self.self_pool.allocate(1)
        return True

    def hold(self, rows: Sequence[CachedSequence], positions: Sequence[int]) -> list[int]:
        """Take an additional reference to one block of each sequence, so that the block is not reused.

        positions: for each sequence, the position of a token in the block.
        Returns the blocks, for `release_held`.
        """
        size = self.self_pool.block_size
        return self.self_pool.share([row.block_table[at // size] for row, at in zip(rows, positions, strict=True)])

    def release_held(self, blocks: Sequence[int], is_finite: bool) -> None:
        """Give back the references that `hold` has taken. blocks: result of `hold`.

        is_finite: the logits computed from the keys and values in the blocks are finite. Otherwise freed blocks are
            cleared before their next use.
        """
        freed = self.self_pool.release(blocks)
        if not is_finite:
            self._self_blocks_to_clear += freed

    def accept(self, row: CachedSequence, count: int) -> int:
        """Keep the first `count` draft tokens of a computed row.

        Returns the number of these tokens whose results in the cache are kept, so that no step computes them again.
        """
        return count

    def shorten(self, row: CachedSequence) -> None:
        """Free the blocks after the computed tokens of a sequence, which held rejected draft tokens."""
        kept = self.self_pool.blocks_for(row.num_computed_tokens)
        self.self_pool.release(row.block_table[kept:])
        del row.block_table[kept:]

    def fork(self, group: SequenceGroup, parents: list[int]) -> None:
        """Replace the sequences of a group by its new beams: beam i continues the old sequence `parents[i]`.

        All tokens of the group are computed. The first child of a sequence is the sequence itself, with one more token.
        Any other child replaces a sequence without children, if there is one, and takes over its last block if
        possible: only slots with different tokens are copied, before the next step. Full blocks are shared.

        If the group is in lanes, the sequences stay as they are, and only the parents are recorded.
        """
        assert group.beams is not None
        if group.lanes is not None:
            group.lanes.follow(parents)
            for sequence, token in zip(group.sequences, group.beams.running_beams.last_tokens, strict=True):
                sequence.tokens.append(token)
            return
        old, claims = group.sequences, _claims_of(tuple(parents), len(group.sequences))
        children = [old[index] for index in claims.rows]
        for place, row in claims.branches:
            children[place] = self._branch(group, old[parents[place]], None if row is None else old[row])
        for row in claims.ended:
            self.self_pool.release(old[row].block_table)
        for sequence, token in zip(children, group.beams.running_beams.last_tokens, strict=True):
            sequence.tokens.append(token)
        group.sequences = children

    def _branch(self, group: SequenceGroup, row: CachedSequence, ended: CachedSequence | None) -> CachedSequence:
        """Create the sequence of a further child of `row`. Its new token is not appended yet.

        ended: a sequence without children, which the child replaces; None if there is none. The child takes over its
            last block if no other sequence shares the block.
        """
        pool, done, table = self.self_pool, row.num_computed_tokens, row.block_table
        full, used = divmod(done, pool.block_size)
        if ended is None or not used or pool.references(ended.block_table[full]) > 1:
            group.writable_tokens = 0
            shared, keys = pool.share(table), list(row.block_keys)
            child = replace(row, tokens=list(row.tokens), block_table=shared, block_keys=keys, state=None)
            if ended is not None:
                pool.release(ended.block_table)
            return child
        own, common = ended.block_table, 0
        tail = row.tokens[done - used :]
        if own[:full] == table[:full]:
            # Beams differ near the end only, so most slots of the last block already hold the right tokens.
            common = common_length(tail, ended.tokens[done - used :], used)
            ended.tokens[done - used :] = tail
        else:
            shared = pool.share(table[:full])
            pool.release(own[:full])
            own[:full] = shared
            ended.tokens = list(row.tokens)
        group.copies.append((table[full], own[full], common, used))
        ended.block_keys, ended.published_blocks = list(row.block_keys), row.published_blocks
        return ended

    def publish(self, group: SequenceGroup) -> None:
        """Record that logits from all computed tokens are finite, and register full blocks in the prefix cache.

        A group in lanes registers none, because its blocks have tokens of several texts.
        """
        for row in group.sequences:
            row.verified_tokens = row.num_computed_tokens
        if not self.prefix_cache or group.lanes is not None:
            return
        size = self.self_pool.block_size
        for row in group.sequences:
            full = row.num_computed_tokens // size
            if full > row.published_blocks:
                self._publish_blocks(group, row, full)

    def publish_each(self, groups: Sequence[SequenceGroup]) -> None:
        """Like `publish`, for many groups with one sequence each.

        Groups without a new full block take almost no time.
        """
        size, has_cache = self.self_pool.block_size, self.prefix_cache
        for group in groups:
            (row,) = group.sequences
            row.verified_tokens = row.num_computed_tokens
            if has_cache and row.num_computed_tokens // size > row.published_blocks:
                self.publish(group)

    def _publish_blocks(self, group: SequenceGroup, row: CachedSequence, count: int) -> None:
        """Register the first `count` blocks of a row in the prefix cache, except those already registered."""
        extend_keys(row.block_keys, group.root_key, row.tokens, self.self_pool.block_size)
        for index in range(row.published_blocks, count):
            self.self_pool.publish(row.block_table[index], row.block_keys[index])
        row.published_blocks = count

    # -------------------------------------------------------------------------------------------------- release

    def release(self, group: SequenceGroup, corrupt: bool = False) -> None:
        """Free all blocks of a group.

        corrupt: the keys and values in the blocks may be wrong. The prefix cache then forgets the blocks.
        """
        if corrupt:
            self.self_pool.forget(block for row in group.sequences for block in row.block_table)
            if self.host is not None:
                self.host.forget([key for row in group.sequences for key in row.block_keys])
        unverified = corrupt or not group.is_verified
        self._release_sequences(group, unverified)
        if self.cross_pool is not None:
            freed = self.cross_pool.release(group.cross_block_table)
            group.cross_block_table = []
            if unverified:
                self._cross_blocks_to_clear += freed

    def enter_lanes(self, group: SequenceGroup) -> None:
        """Let each beam of a group write its new tokens to the blocks of one sequence (see `BeamLanes`).

        The caller makes sure that no two sequences share the block of their last token, which the next step computes.
        """
        group.lanes = BeamLanes(group.num_tokens - 1, len(group.sequences))

    def leave_lanes(self, group: SequenceGroup) -> SlotCopies | None:
        """Give each sequence of a group in lanes the block table of one beam, which has the blocks of the beam's text.

        A lane is a sequence whose blocks get the new tokens of one beam, even if the beam continues another beam
        (`BeamLanes`).

        Returns the cache slots that must be copied; None if there is nothing to copy.
        """
        return leave_lanes(self.self_pool, group)

    def release_for_recompute(self, group: SequenceGroup) -> None:
        """Free the self-attention blocks of a group that will be computed again. Its encoded source is kept."""
        assert group.lanes is None, "the sequences of lanes do not have the texts of the beams"
        self._release_sequences(group, not group.is_verified)

    def _release_sequences(self, group: SequenceGroup, unverified: bool) -> None:
        for row in group.sequences:
            freed = self.self_pool.release(row.block_table)
            row.block_table, row.draft = [], []
            row.num_computed_tokens = row.published_blocks = row.verified_tokens = 0
            if unverified:
                self._self_blocks_to_clear += [block for block in freed if not self.self_pool.is_published(block)]
        group.shared_tokens = group.writable_tokens = 0
        group.copies, group.lanes = [], None

    def take_blocks_to_clear(self) -> tuple[list[int], list[int]]:
        """Take the lists of freed `self` and `cross` blocks that must be cleared before their next use.

        Their contents were never verified. Each block is returned once.
        """
        blocks = self._self_blocks_to_clear, self._cross_blocks_to_clear
        self._self_blocks_to_clear, self._cross_blocks_to_clear = [], []
        return blocks


class _Claims(NamedTuple):
    """How the new beams of a group are made from its old sequences. All values are indices.

    rows: for each new beam, its parent sequence. The first child of a parent is the parent itself.
    branches: for each further child of a parent, a pair: the new beam, and a sequence without children that it
        replaces (None if no such sequence is left).
    ended: sequences without children that no beam replaces.
    """

    rows: tuple[int, ...]
    branches: tuple[tuple[int, int | None], ...]
    ended: tuple[int, ...]


@lru_cache(maxsize=4096)
def _claims_of(parents: tuple[int, ...], num_rows: int) -> _Claims:
    """Compute `_Claims` from the parent index of each new beam.

    Results are cached: with few beams there are few patterns, so most steps find their result in the cache.
    """
    ended = [row for row in range(num_rows) if row not in parents]
    others = [place for place, parent in enumerate(parents) if parent in parents[:place]]
    branches = tuple(zip_longest(others, ended[: len(others)]))
    return _Claims(parents, branches, tuple(ended[len(others) :]))
