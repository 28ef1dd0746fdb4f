"""What one step computes. Knows requests and tokens; which blocks they hold, `BlockTables` knows.

There are no phases. Every row has tokens, some of them computed, and catches up under a token budget: first rows that
lack one token (they decode, and are never held back by the budget), then chunks of rows that are further behind, then
new requests in the order of arrival. A request is admitted when the tokens it has now fit the pool. When a decoding row
finds no free block, the newest admitted request gives its blocks back and is computed again later
(docs/decisions/0003-admission-and-preemption.md).

A decoding row may bring a draft of what follows its last token; as much of it is computed as there is room for, and the
blocks of what turns out wrong are given back (docs/decisions/0018-speculative-decoding.md).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from server.engine.block_tables import BlockTables
from server.engine.pace import Pace
from server.engine.sequence import Request, Sequence, State

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
    def scores_prompts(self) -> bool:
        return any(row.request.scores_prompt for row in self.rows)

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

    max_batch_tokens: tokens of one step beyond which no prefill is added, those of sources at
    `SOURCE_TOKENS_PER_TOKEN`; a step that somebody waits for adds what `pace` allows, which is to be told how long each
    step took.
    max_batch_rows: rows of all running requests together.
    """

    def __init__(self, blocks: BlockTables, max_batch_tokens: int, max_batch_rows: int) -> None:
        self.blocks = blocks
        self.max_batch_tokens = max_batch_tokens
        self.max_batch_rows = max_batch_rows
        self.pace = Pace()
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preemptions = 0

    def refusal(self, request: Request) -> str | None:
        """Why a request could not run even alone, or None."""
        if request.width > self.max_batch_rows:
            return f"{request.width} beams; at most {self.max_batch_rows} rows run together"
        return self.blocks.refusal(request)

    def add(self, request: Request) -> None:
        """Queue a request that `refusal` has nothing against."""
        self.waiting.append(request)

    def remove(self, request: Request, spoiled: bool = False) -> None:
        """Take a request out, wherever it is. spoiled: its keys and values, found or its own, may be anything."""
        if request.state is State.RUNNING:
            self.running.remove(request)
        elif request.state is State.WAITING:
            self.waiting.remove(request)
        request.state = State.FINISHED
        self.blocks.release(request, spoiled)

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
        self.blocks.publish(request)
        if row.draft:
            row.draft = []
            self.blocks.shorten(row)

    def undraft(self, request: Request) -> None:
        """Compute a running request again, without drafts: one of them may have spoiled what it has computed."""
        request.takes_drafts = False
        self._preempt(request)

    def _decode(self, request: Request, schedule: Schedule) -> None:
        while self.blocks.lacks_blocks(request):
            newest = self.running[-1]
            self._preempt(newest)
            if newest is request:
                return
        schedule.copies += self.blocks.make_writable(request)
        schedule.rows += [ScheduledRow(request, row, 1) for row in request.rows]

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
        used = 0
        for scheduled in schedule.rows:
            row = scheduled.sequence
            if row.draft:
                del row.draft[self.blocks.extend(row, min(budget - used, len(row.draft))) :]
                used += len(row.draft)
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
            found = self.blocks.find(request)
            if not self.blocks.fits(request, found) or self.blocks.comes_soon(request, len(found), self.running):
                return
            source = 0 if request.source_encoded else source_cost(request)
            # A source is encoded whole. One that exceeds the budget goes when no other prefill does.
            if source > budget and prefills:
                return
            self.waiting.popleft()
            request.state = State.RUNNING
            self.running.append(request)
            self.blocks.take(request, found)
            if source:
                schedule.sources.append(request)
                budget = max(budget - source, 1)
            budget -= self._prefill(request, schedule, budget)
            prefills = True

    def _preempt(self, request: Request) -> None:
        """Give the blocks of a running request back; it will be admitted again before all others."""
        self.num_preemptions += 1
        request.lost_tokens = sum(row.num_computed_tokens for row in request.rows)
        self._set_back(request)

    def _set_back(self, request: Request) -> None:
        self.blocks.set_back(request)
        self.running.remove(request)
        request.state = State.WAITING
        self.waiting.appendleft(request)
