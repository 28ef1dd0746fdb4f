"""Assigns KV blocks and state slots to the sequences of a model with mixers. Imports no torch.

A mixer is a layer that keeps a state of fixed size per sequence, such as a recurrent layer. A state slot holds one such
state; slots are managed like KV blocks, in a second pool. A snapshot is a slot that the prefix cache keeps. It is found
by the key of the KV block that ends at the same token. Snapshots take free slots, least recently used first.

A group can reuse a cached prompt beginning up to a snapshot. Snapshots are taken at the last boundary of a prompt, at
the boundary before it if the last one is close to the end, and where a prompt diverges from an earlier one. Boundaries
are multiples of the chunk length and of the block size.
Only blocks of prompt tokens before the last boundary enter the prefix cache: their tokens were computed in full chunks,
so that a request that reuses them gets exactly the same results. See docs/decisions/0071-per-sequence-state.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import lcm

from models.config import CHUNK_TOKENS
from server.engine.cache.block_manager import BlockManager
from server.engine.cache.block_tables import BlockTables
from server.engine.sequences.prefix_keys import extend_keys
from server.engine.sequences.sequence import CachedSequence, SequenceGroup
from server.engine.sequences.sequence_state import SequenceState
from server.ipc.wire.descriptions import state_slots

REWRITTEN_TOKENS = 32
"""Number of tokens at the end of a prompt that may be different in the next prompt of the same conversation.

A prompt ends with the beginning of the answer, such as an empty reasoning section. Once the answer is complete, the
chat template may write that part differently.
"""


class StateBlockTables(BlockTables):
    """The KV pool and the state slots of a decoder with mixers.

    state_pool: slots, as blocks of one token each.
    slot_bytes: memory of a slot.
    chunk_tokens: length of the chunks in which a prompt is computed, in tokens.
    boundary: snapshots are taken at positions that are multiples of this number of tokens.
    """

    def __init__(
        self,
        self_pool: BlockManager,
        state_pool: BlockManager,
        prefix_cache: bool = False,
        slot_bytes: int = 0,
        chunk_tokens: int = CHUNK_TOKENS,
    ) -> None:
        super().__init__(self_pool, None, prefix_cache)
        self.state_pool = state_pool
        self.slot_bytes = slot_bytes
        self.chunk_tokens = chunk_tokens
        self.boundary = lcm(chunk_tokens, self_pool.block_size)

    @property
    def pools(self) -> dict[str, BlockManager]:
        return {**super().pools, "state": self.state_pool}

    def state_bytes(self) -> dict[str, int]:
        """Bytes of the state slots in use (`sequences`), and of the slots in the prefix cache (`snapshots`).

        A snapshot that a running sequence uses counts in both numbers.
        """
        snapshots = self.state_pool.published_blocks
        return {"sequences": self.state_pool.used_blocks * self.slot_bytes, "snapshots": snapshots * self.slot_bytes}

    def refusal(self, group: SequenceGroup) -> str | None:
        needed = state_slots(group.max_rows)
        if needed > self.state_pool.num_blocks:
            return (
                f"{group.max_rows} rows need {needed} state slots; there are {self.state_pool.num_blocks} "
                "(--kv-cache-memory)"
            )
        return super().refusal(group)

    # --------------------------------------------------------------------------------------------- admission

    def find(self, group: SequenceGroup) -> list[int]:
        """Cached blocks of the group's first sequence up to the last snapshot of its prompt."""
        found = super().find(group)
        keys = group.sequences[0].block_keys
        for position in range(self._whole(min(self._in_blocks(found), self._cacheable(group))), 0, -self.boundary):
            if self._snapshot(keys, position) is not None:
                return found[: position // self.self_pool.block_size]
        return []

    def is_being_computed(self, group: SequenceGroup, found: int, running: Iterable[SequenceGroup]) -> bool:
        """Whether to delay a group, because a running group will leave a state snapshot that the group can reuse.

        Only snapshots after the first `found` cached blocks count.
        Side effect: a running group with the same prompt beginning may be asked for a snapshot. The position is the
        last multiple of `boundary` tokens in the shared beginning, if the running group has not computed it yet.
        """
        if not self._uses_prefix_cache(group):
            return False
        keys, limit = group.sequences[0].block_keys, min(self._cacheable(group), group.num_tokens - 1)
        for other in running:
            row = other.sequences[0]
            common = _common_keys(keys, row.block_keys) * self.self_pool.block_size
            position = self._whole(min(common, limit, self._cacheable(other)))
            if position <= found * self.self_pool.block_size or row.state is None:
                continue
            if position > row.num_computed_tokens:
                row.state.wanted.add(position)
            if position in row.state.wanted or position in row.state.snapshots:
                return True
        return False

    def fits(self, group: SequenceGroup, found: list[int]) -> bool:
        needed = state_slots(group.max_rows) - 1
        snapshot = self._snapshot(group.sequences[0].block_keys, self._in_blocks(found))
        if snapshot is not None and self.state_pool.references(snapshot) == 0:
            needed += 1
        return needed <= self.state_pool.free_blocks and super().fits(group, found)

    def take(self, group: SequenceGroup, found: list[int]) -> None:
        """Allocate blocks and slots for a group. found: cached blocks, which end with a snapshot."""
        first, *others = group.sequences
        start, boundary = self._in_blocks(found), self._cacheable(group)
        snapshot = self._snapshot(first.block_keys, start)
        source = None if snapshot is None else self.state_pool.share([snapshot])[0]
        # A third prompt may share the text up to the position at which this one diverges from an earlier one.
        branch = self._whole(min(self._in_blocks(super().find(group)), boundary))
        super().take(group, found)
        first.state = SequenceState(source, self.state_pool.allocate(1)[0])
        if self.prefix_cache:
            safe = self._whole(max(group.num_prompt_tokens - REWRITTEN_TOKENS, 0))
            first.state.wanted = {position for position in (branch, safe, boundary) if position > start}
        shared = source
        if others and group.shared_tokens > start:
            first.state.snapshots[group.shared_tokens] = shared = self.state_pool.allocate(1)[0]
        for row in others:
            own_source = None if shared is None else self.state_pool.share([shared])[0]
            row.state = SequenceState(own_source, self.state_pool.allocate(1)[0])

    def _shared_blocks(self, group: SequenceGroup) -> int:
        """Number of leading blocks that all beams share when they are computed again.

        These are the blocks in whole chunks of the prompt.
        """
        shared = self._whole(min(group.common_tokens(), group.num_prompt_tokens))
        return shared // self.self_pool.block_size

    def _cacheable(self, group: SequenceGroup) -> int:
        """Number of leading tokens whose blocks enter the prefix cache: those in whole chunks of the prompt."""
        return self._whole(group.num_prompt_tokens)

    def _whole(self, tokens: int) -> int:
        return tokens - tokens % self.boundary

    def _in_blocks(self, blocks: Sequence[int]) -> int:
        return len(blocks) * self.self_pool.block_size

    def _snapshot(self, keys: Sequence[bytes], position: int) -> int | None:
        """Slot of the cached snapshot after the first `position` tokens of a text; None if no snapshot is cached.

        keys: keys of the full blocks of the text.
        """
        size = self.self_pool.block_size
        found = self.state_pool.find(keys[position // size - 1 : position // size]) if position else []
        return found[0] if found else None

    # ------------------------------------------------------------------------------------------------- a step

    def lacks_blocks(self, group: SequenceGroup) -> bool:
        lacking = sum(_state(row).slot is None for row in group.sequences)
        return lacking > self.state_pool.free_blocks or super().lacks_blocks(group)

    def make_writable(self, group: SequenceGroup) -> list[tuple[int, int, int, int]]:
        for row in group.sequences:
            state = _state(row)
            if state.slot is None:
                (state.slot,) = self.state_pool.allocate(1)
        return super().make_writable(group)

    def whole_chunks(self, group: SequenceGroup, row: CachedSequence, count: int, has_prefill: bool) -> int:
        """Number of the next `count` tokens of a sequence that a step may compute. Chunks of a prompt are not divided.

        has_prefill: whether the step already has prefill tokens. If it has none, at least one chunk is allowed, so that
            prompts make progress under any token budget.
        """
        start, prompt = row.num_computed_tokens, group.num_prompt_tokens
        end = start + count
        if end >= prompt:
            return count
        end -= end % self.chunk_tokens
        if end > start:
            return end - start
        return 0 if has_prefill else min(start + self.chunk_tokens, prompt) - start

    def prepare(self, group: SequenceGroup, row: CachedSequence, num_tokens: int) -> None:
        """Prepare the states of a row for a step. The row is divided into parts that end where a snapshot is taken.

        Slots are allocated for the snapshots, as long as slots are free.

        num_tokens: number of tokens of the row in the step, without its draft.
        """
        state = _state(row)
        end = row.num_computed_tokens + num_tokens
        for position in sorted(state.wanted):
            if position <= end:
                state.wanted.remove(position)
                if position not in state.snapshots and self.state_pool.free_blocks:
                    (state.snapshots[position],) = self.state_pool.allocate(1)
        state.divide(row.num_computed_tokens, num_tokens, len(row.draft), group.num_prompt_tokens)

    def computed(self, row: CachedSequence) -> None:
        """Record that a step has computed the new tokens of a sequence.

        The slot with the state after these tokens, without a draft, becomes the `source` that the next step reads.
        """
        state = _state(row)
        part = state.parts[-2 if row.draft else -1]
        if state.source not in (None, state.slot):
            self.state_pool.release([state.source])
        state.source = part.slot if part.slot == state.slot else self.state_pool.share([part.slot])[0]
        row.repeated_tokens = 0

    def extend(self, row: CachedSequence, num_tokens: int) -> int:
        """Allocate blocks for up to `num_tokens` draft tokens, and a state slot. Returns how many tokens have room.

        The draft needs a slot of its own, because the state before it must be kept. Returns 0 if no slot is free.
        """
        state = _state(row)
        if not self.state_pool.free_blocks:
            return 0
        count = super().extend(row, num_tokens)
        if count:
            (state.draft_slot,) = self.state_pool.allocate(1)
        return count

    def accept(self, row: CachedSequence, count: int) -> int:
        """Keep the state after a draft that was accepted as a whole. Otherwise keep the state before the draft.

        In the second case, the next step computes the accepted tokens again.

        count: number of accepted tokens. Returns how many of them the kept state includes.
        """
        state = _state(row)
        if state.draft_slot is None:
            return count
        if count < len(row.draft):
            self.state_pool.release([state.draft_slot])
            state.draft_slot, row.repeated_tokens = None, count
            return 0
        # The state before the draft is in `slot`, unless a snapshot or another sequence shares it.
        released = [slot for slot in {state.source, state.slot} if slot is not None]
        self.state_pool.release(released)
        state.source = state.slot = state.draft_slot
        state.draft_slot = None
        return count

    def shorten(self, row: CachedSequence) -> None:
        kept = self.self_pool.blocks_for(row.num_computed_tokens + row.repeated_tokens)
        self.self_pool.release(row.block_table[kept:])
        del row.block_table[kept:]

    def fork(self, group: SequenceGroup, parents: list[int]) -> None:
        """Replace the sequences of a group by its new beams: beam i continues the old sequence `parents[i]`.

        Several children of one sequence share its state for reading, and each gets a new slot for writing.
        """
        states = [_state(row) for row in group.sequences]
        super().fork(group, parents)
        for row, parent in zip(group.sequences, parents, strict=True):
            if parents.count(parent) == 1:
                row.state = states[parent]
            else:
                source = states[parent].source
                row.state = SequenceState(None if source is None else self.state_pool.share([source])[0], None)
        for index, state in enumerate(states):
            if parents.count(index) != 1:
                self.state_pool.release(state.held_slots())

    def publish(self, group: SequenceGroup) -> None:
        """Record that logits from all computed tokens are finite.

        The blocks and snapshots of the prompt enter the prefix cache, where other groups find them.
        """
        size = self.self_pool.block_size
        for row in group.sequences:
            row.verified_tokens = row.num_computed_tokens
            full = min(row.num_computed_tokens, self._cacheable(group)) // size
            if self.prefix_cache and full > row.published_blocks:
                self._publish_blocks(group, row, full)
            state = _state(row)
            if state.snapshots:
                extend_keys(row.block_keys, group.root_key, row.tokens, size)
                for position, slot in state.snapshots.items():
                    if self.prefix_cache:
                        self.state_pool.publish(slot, row.block_keys[position // size - 1])
                self.state_pool.release(list(state.snapshots.values()))
                state.snapshots = {}

    def publish_each(self, groups: Sequence[SequenceGroup]) -> None:
        for group in groups:
            self.publish(group)

    # -------------------------------------------------------------------------------------------------- release

    def release(self, group: SequenceGroup, corrupt: bool = False) -> None:
        if corrupt:
            keys = group.sequences[0].block_keys
            positions = range(self.boundary, self._cacheable(group) + 1, self.boundary)
            snapshots = (self._snapshot(keys, position) for position in positions)
            self.state_pool.forget([slot for slot in snapshots if slot is not None])
        super().release(group, corrupt)

    def _release_sequences(self, group: SequenceGroup, unverified: bool) -> None:
        super()._release_sequences(group, unverified)
        for row in group.sequences:
            row.repeated_tokens = 0
            self._release_state(row)

    def _release_state(self, row: CachedSequence) -> None:
        if row.state is not None:
            self.state_pool.release(row.state.held_slots())
            row.state = None


def _state(row: CachedSequence) -> SequenceState:
    assert row.state is not None, "a running sequence has a state"
    return row.state


def _common_keys(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Number of leading keys that two texts share.

    Each key depends on the key before it, so all keys after the first difference differ too.
    """
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[middle - 1] == other[middle - 1] else (low, middle - 1)
    return low
