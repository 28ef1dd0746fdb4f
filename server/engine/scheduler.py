"""What one step computes. Knows requests, tokens and blocks; no tensors, no clocks, no sockets.

There are no phases. Every row has tokens, some of them computed, and catches up under a token budget: first rows that
lack one token (they decode, and are never held back by the budget), then chunks of rows that are further behind, then
new requests in the order of arrival. A request is admitted when the tokens it has now fit the pool. When a decoding row
finds no free block, the newest admitted request gives its blocks back and is computed again later
(docs/decisions/0003-admission-and-preemption.md).

Full blocks whose keys and values are known to be good are found by what they hold: a request starts where its text
leaves those of earlier ones (docs/decisions/0017-prefix-cache.md).

A decoding row may bring a draft of what follows its last token; as much of it is computed as there is room for, and the
blocks of what turns out wrong are given back (docs/decisions/0018-speculative-decoding.md).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from server.engine.block_manager import BlockManager
from server.engine.pace import Pace
from server.engine.prefix_keys import extend_keys
from server.engine.sequence import Request, Sequence, State, common_length

PREFILL_PER_DECODE = 4
"""Where no pace is known yet: prefill tokens that a step may add for each row that decodes in it."""

SOURCE_TOKENS_PER_TOKEN = 2
"""How many tokens of a source count as one: they meet an encoder, but neither a vocabulary nor a cache."""


def shared_tokens(max_batch_tokens: int) -> int:
    """Tokens of a step that others wait for, where no pace is known: a part of what it may have when nobody does."""
    return max(max_batch_tokens // 8, 1)


def source_cost(request: Request) -> int:
    """What encoding the source of a request takes of a budget."""
    return -(-request.num_source_tokens // SOURCE_TOKENS_PER_TOKEN)


@dataclass(slots=True)
class ScheduledRow:
    """The next `num_tokens` uncomputed tokens of one row, and after the last one the row's draft."""

    request: Request
    sequence: Sequence
    num_tokens: int

    @property
    def width(self) -> int:
        """Tokens that the step computes for it."""
        return self.num_tokens + len(self.sequence.draft)

    @property
    def needs_logits(self) -> bool:
        """Whether the row's last token is among them."""
        sequence = self.sequence
        return self.num_tokens == len(sequence.tokens) - sequence.num_computed_tokens


@dataclass(slots=True)
class Schedule:
    """One step: encode `sources`, copy the `copies` of `self` blocks (source, destination, first slot and end), then
    compute `rows`.

    num_row_tokens, num_decode_tokens: of all rows, and of those that have begun to answer and decode; the scheduler
    counts them when a step is complete.
    """

    rows: list[ScheduledRow] = field(default_factory=list)
    sources: list[Request] = field(default_factory=list)
    copies: list[tuple[int, int, int, int]] = field(default_factory=list)
    num_row_tokens: int = 0
    num_decode_tokens: int = 0

    @property
    def requests(self) -> list[Request]:
        """Every request of the step, once."""
        return list(dict.fromkeys([*self.sources, *(row.request for row in self.rows)]))

    @property
    def num_tokens(self) -> int:
        return self.num_row_tokens + sum(request.num_source_tokens for request in self.sources)

    @property
    def num_added_tokens(self) -> int:
        """Tokens that nobody who has begun to answer waits for, as the budget counts them."""
        sources = sum(source_cost(request) for request in self.sources)
        return self.num_row_tokens - self.num_decode_tokens + sources

    @property
    def phase(self) -> Literal["prefill", "decode", "mixed"]:
        if self.num_decode_tokens == 0:
            return "prefill"
        return "decode" if self.num_decode_tokens == self.num_tokens else "mixed"


class Scheduler:
    """Requests of one model: waiting, running, and their blocks.

    cross_pool: blocks for encoded sources, None for a decoder. max_batch_tokens: tokens of one step beyond which no
    prefill is added, those of sources at `SOURCE_TOKENS_PER_TOKEN`; a step that somebody waits for adds what `pace`
    allows, which is to be told how long each step took.
    max_batch_rows: rows of all running requests together. prefix_cache: whether requests may share the blocks of their
    common beginning; to be left off where keys and values of a token depend on more than it and those before it. A
    decoder that looks at a source is such a case, and never shares.
    """

    def __init__(
        self,
        self_pool: BlockManager,
        cross_pool: BlockManager | None,
        max_batch_tokens: int,
        max_batch_rows: int,
        prefix_cache: bool = False,
    ) -> None:
        self.self_pool = self_pool
        self.cross_pool = cross_pool
        self.max_batch_tokens = max_batch_tokens
        self.max_batch_rows = max_batch_rows
        self.prefix_cache = prefix_cache and cross_pool is None
        self.pace = Pace()
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preemptions = 0
        self.num_wasted_tokens = 0
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0
        self.suspect_self_blocks: list[int] = []
        self.suspect_cross_blocks: list[int] = []

    def refusal(self, request: Request) -> str | None:
        """Why a request could not run even alone, or None."""
        if request.width > self.max_batch_rows:
            return f"{request.width} beams; at most {self.max_batch_rows} rows run together"
        tokens = request.num_prompt_tokens + request.params.max_new_tokens
        worst = request.width * self.self_pool.blocks_for(tokens)
        if worst > self.self_pool.num_blocks:
            return (
                f"{request.width} x {tokens} tokens need {worst} KV blocks of {self.self_pool.block_size} tokens; "
                f"there are {self.self_pool.num_blocks}"
            )
        if self.cross_pool is not None:
            source = self.cross_pool.blocks_for(request.num_source_tokens)
            if source > self.cross_pool.num_blocks:
                return f"the source needs {source} KV blocks; there are {self.cross_pool.num_blocks}"
        return None

    def add(self, request: Request) -> None:
        """Queue a request that `refusal` has nothing against."""
        self.waiting.append(request)

    def remove(self, request: Request, suspect: bool = False) -> None:
        """Take a request out, wherever it is. suspect: its keys and values, found or its own, may be anything."""
        if request.state is State.RUNNING:
            self.running.remove(request)
        elif request.state is State.WAITING:
            self.waiting.remove(request)
        request.state = State.FINISHED
        if suspect:
            self.self_pool.forget(block for row in request.rows for block in row.block_table)
        suspect = suspect or not request.is_sound
        self._release_rows(request, suspect)
        if self.cross_pool is not None:
            freed = self.cross_pool.release(request.cross_block_table)
            request.cross_block_table = []
            if suspect:
                self.suspect_cross_blocks += freed

    def take_suspects(self) -> tuple[list[int], list[int]]:
        """Free `self` and `cross` blocks to zero before use: no finite logits ever spoke for what is in them."""
        suspects = self.suspect_self_blocks, self.suspect_cross_blocks
        self.suspect_self_blocks, self.suspect_cross_blocks = [], []
        return suspects

    def fork(self, request: Request, parents: list[int]) -> None:
        """Replace the rows of a group by its new beams: row i goes on from old row `parents[i]`.

        The first child of a row takes its blocks over. The others share those that are full, and have the last one of a
        row that nobody goes on from: what that does not hold already is copied into it before the next step.
        """
        assert request.beams is not None
        old, heirs = request.rows, set(parents)
        prompt = old[0].tokens[: request.num_prompt_tokens]
        ended = [row for index, row in enumerate(old) if index not in heirs]
        request.rows = []
        for beam, parent in zip(request.beams.running, parents, strict=True):
            row = old[parent]
            if parent in heirs:
                heirs.remove(parent)
                table, keys = row.block_table, row.block_keys
            else:
                table, keys = self._branch(request, row, ended), list(row.block_keys)
            request.rows.append(
                Sequence(
                    [*prompt, *beam.tokens],
                    row.num_computed_tokens,
                    table,
                    keys,
                    row.published_blocks,
                    sound_tokens=row.sound_tokens,
                )
            )
        for row in ended:
            self.self_pool.release(row.block_table)

    def _branch(self, request: Request, row: Sequence, ended: list[Sequence]) -> list[int]:
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
        request.copies.append((row.block_table[full], block, first, done - full * pool.block_size))
        return [*pool.share(row.block_table[:full]), block]

    def restart(self, request: Request) -> None:
        """Compute a running request anew from its start, before any that waits, as the longer text that it now is."""
        request.rope_tokens = request.num_tokens
        self._set_back(request)

    # --------------------------------------------------------------------------------------------------- a step

    def schedule(self) -> Schedule | None:
        """The next step, its blocks taken; None when there is nothing to do. `computed` tells that it was done."""
        schedule = Schedule()
        preempted = self.num_preemptions
        behind = []
        for request in list(self.running):
            if not request.wants_next_token:
                behind.append(request)
            elif request.state is State.RUNNING:
                self._decode(request, schedule)
        budget = self.max_batch_tokens - len(schedule.rows)
        budget -= self._draft(schedule, budget)
        # Of rows that decode, only those that have begun to answer are decode tokens; the rest are short prompts.
        schedule.num_decode_tokens = sum([row.width for row in schedule.rows if row.request.num_generated > 0])
        if behind or self.waiting:
            budget = min(budget, self._room(schedule))
            for request in behind:
                if request.state is State.RUNNING:
                    budget -= self._prefill(request, schedule, budget)
            if self.num_preemptions == preempted:
                self._admit(schedule, budget)
        schedule.num_row_tokens = sum([row.width for row in schedule.rows])
        return schedule if schedule.rows or schedule.sources else None

    def computed(self, schedule: Schedule) -> None:
        """The step is done: its keys and values are in the cache."""
        for row in schedule.rows:
            row.sequence.num_computed_tokens += row.num_tokens
        for request in schedule.sources:
            request.source_encoded = True
            request.source_frames = b""

    def append(self, request: Request, tokens: list[int]) -> None:
        """New tokens of a single row: all but the last were in its draft, so their keys and values are in the cache."""
        (row,) = request.rows
        row.tokens += tokens
        row.num_computed_tokens += len(tokens) - 1
        self.publish(request)
        if row.draft:
            row.draft = []
            kept = self.self_pool.blocks_for(row.num_computed_tokens)
            self.self_pool.release(row.block_table[kept:])
            del row.block_table[kept:]

    def undraft(self, request: Request) -> None:
        """Compute a running request again, without drafts: one of them may have spoiled what it has computed."""
        request.takes_drafts = False
        self._preempt(request)

    def publish(self, request: Request) -> None:
        """Finite logits have spoken for all that a request has computed: others may read its full blocks."""
        for row in request.rows:
            row.sound_tokens = row.num_computed_tokens
        if not self.prefix_cache:
            return
        size = self.self_pool.block_size
        for row in request.rows:
            full = row.num_computed_tokens // size
            if full > row.published_blocks:
                extend_keys(row.block_keys, request.root_key, row.tokens, size)
                for index in range(row.published_blocks, full):
                    self.self_pool.publish(row.block_table[index], row.block_keys[index])
                row.published_blocks = full

    def _decode(self, request: Request, schedule: Schedule) -> None:
        position = request.num_tokens - 1
        tables = [row.block_table for row in request.rows]
        while self.self_pool.blocks_to_write(tables, position) > self.self_pool.free_blocks:
            newest = self.running[-1]
            self._preempt(newest)
            if newest is request:
                return
        schedule.copies += request.copies
        request.copies = []
        for row in request.rows:
            copy = self.self_pool.make_writable(row.block_table, position)
            if copy is not None:
                schedule.copies.append((*copy, 0, position % self.self_pool.block_size))
            schedule.rows.append(ScheduledRow(request, row, 1))

    def _room(self, schedule: Schedule) -> int:
        """How many tokens those bear who wait for the next one of theirs (docs/decisions/0026-bursts.md)."""
        had = [request.num_generated for request in schedule.requests]
        settled, beginners = sum(count > 1 for count in had), had.count(1)
        if not settled + beginners:
            return self.max_batch_tokens
        free_rows = self.max_batch_rows - sum(request.width for request in self.running)
        newcomers = len(self.running) - settled - beginners + min(len(self.waiting), free_rows)
        room = self.pace.tokens_to_add(settled, beginners, newcomers, schedule.num_decode_tokens)
        if room is None:
            return max(PREFILL_PER_DECODE * len(schedule.rows), shared_tokens(self.max_batch_tokens))
        return room

    def _draft(self, schedule: Schedule, budget: int) -> int:
        """Make room for the drafts of decoding rows, and cut what has none. Returns how many tokens are left of them.

        Nobody is preempted for a guess.
        """
        used, pool = 0, self.self_pool
        for scheduled in schedule.rows:
            row = scheduled.sequence
            if row.draft:
                room = (len(row.block_table) + pool.free_blocks) * pool.block_size - len(row.tokens)
                del row.draft[max(min(budget - used, room), 0) :]
                used += len(row.draft)
                needed = pool.blocks_for(len(row.tokens) + len(row.draft)) - len(row.block_table)
                row.block_table += pool.allocate(max(needed, 0))
        return used

    def _prefill(self, request: Request, schedule: Schedule, budget: int) -> int:
        """Schedule what the budget allows of the tokens a request is behind. Returns how many that are."""
        used = 0
        for row, behind in request.catch_up():
            count = min(behind, budget - used)
            if count <= 0:
                break
            schedule.rows.append(ScheduledRow(request, row, count))
            used += count
        return used

    def _admit(self, schedule: Schedule, budget: int) -> None:
        rows = sum(request.width for request in self.running)
        prefills = any(row.num_tokens > 1 for row in schedule.rows)
        while self.waiting and budget > 0:
            request = self.waiting[0]
            rows += request.width
            if rows > self.max_batch_rows:
                return
            found = self._find(request)
            if not self._fits(request, found) or self._comes_soon(request, len(found)):
                return
            source = 0 if request.source_encoded else source_cost(request)
            # A source is encoded whole. One that exceeds the budget goes when no other prefill does.
            if source > budget and prefills:
                return
            self.waiting.popleft()
            request.state = State.RUNNING
            self.running.append(request)
            self._take_blocks(request, found)
            if source:
                schedule.sources.append(request)
                budget = max(budget - source, 1)
            budget -= self._prefill(request, schedule, budget)
            prefills = True

    # --------------------------------------------------------------------------------------------------- blocks

    def _find(self, request: Request) -> list[int]:
        """Blocks that hold what the request's first row begins with.

        The last token is left, since its logits are wanted; of beams, which decode together, one more. The hidden
        states of a prompt that is to be scored are in no cache.
        """
        if not self.prefix_cache or request.params.prompt_logprobs:
            return []
        row, size = request.rows[0], self.self_pool.block_size
        extend_keys(row.block_keys, request.root_key, row.tokens, size)
        left = 1 if len(request.rows) == 1 else 2
        return self.self_pool.find(row.block_keys[: (request.num_tokens - left) // size])

    def _comes_soon(self, request: Request, found: int) -> bool:
        """Whether a running request is computing the very block that this one lacks first.

        To wait for it costs nothing: it was admitted earlier, so the budget of prefills is its own until it is done.
        """
        if not self.prefix_cache or request.params.prompt_logprobs:
            return False
        lacking = request.rows[0].block_keys[found : (request.num_tokens - 1) // self.self_pool.block_size][:1]
        firsts = [other.rows[0] for other in self.running]
        return any(key in row.block_keys[row.published_blocks :] for key in lacking for row in firsts)

    def _fits(self, request: Request, found: list[int]) -> bool:
        pool = self.self_pool
        shared = request.common_tokens() // pool.block_size if len(request.rows) > 1 else 0
        needed = shared + len(request.rows) * (pool.blocks_for(request.num_tokens) - shared)
        needed -= sum(pool.references(block) > 0 for block in found)
        if needed > pool.free_blocks:
            return False
        if self.cross_pool is None or request.cross_block_table:
            return True
        return self.cross_pool.blocks_for(request.num_source_tokens) <= self.cross_pool.free_blocks

    def _take_blocks(self, request: Request, found: list[int]) -> None:
        """Blocks for all tokens that the request has, so that catching up never runs out of them; first those found."""
        pool = self.self_pool
        first, *others = request.rows
        blocks = pool.blocks_for(request.num_tokens)
        first.block_table = pool.share(found)
        first.block_table += pool.allocate(blocks - len(found))
        first.num_computed_tokens = first.sound_tokens = len(found) * pool.block_size
        first.published_blocks = len(found)
        if self.prefix_cache and request.cached_tokens is None and not request.params.prompt_logprobs:
            request.cached_tokens = first.num_computed_tokens
            self.num_prefix_queries += request.num_prompt_tokens
            self.num_prefix_hits += request.cached_tokens
        if others:
            shared = request.common_tokens() // pool.block_size
            request.shared_tokens = shared * pool.block_size
            for row in others:
                row.block_table = pool.share(first.block_table[:shared]) + pool.allocate(blocks - shared)
                row.num_computed_tokens = request.shared_tokens
                row.sound_tokens = min(first.sound_tokens, request.shared_tokens)
                row.published_blocks = min(len(found), shared)
        # What can still be found in the cache was not wasted.
        kept = sum(row.num_computed_tokens for row in request.rows)
        self.num_wasted_tokens += max(request.lost_tokens - kept, 0)
        request.lost_tokens = 0
        if self.cross_pool is not None and not request.cross_block_table:
            needed = self.cross_pool.blocks_for(request.num_source_tokens)
            request.cross_block_table = self.cross_pool.allocate(needed)

    def _preempt(self, request: Request) -> None:
        """Give the blocks of a running request back; it will be admitted again before all others."""
        self.num_preemptions += 1
        request.lost_tokens = sum(row.num_computed_tokens for row in request.rows)
        self._set_back(request)

    def _set_back(self, request: Request) -> None:
        self._release_rows(request, suspect=not request.is_sound)
        self.running.remove(request)
        request.state = State.WAITING
        self.waiting.appendleft(request)

    def _release_rows(self, request: Request, suspect: bool) -> None:
        for row in request.rows:
            freed = self.self_pool.release(row.block_table)
            row.block_table, row.draft = [], []
            row.num_computed_tokens = row.published_blocks = row.sound_tokens = 0
            if suspect:
                self.suspect_self_blocks += [block for block in freed if not self.self_pool.is_published(block)]
        request.shared_tokens = 0
        request.copies = []
