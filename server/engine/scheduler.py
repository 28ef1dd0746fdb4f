"""What one step computes. Knows groups and tokens; which blocks they hold, `BlockTables` knows.

There are no phases. Every row has tokens, some of them computed, and catches up under a token budget: first rows that
lack one token (they decode, and are never held back by the budget), then chunks of rows that are further behind, then
new groups in the order of arrival. A group is admitted when the tokens it has now fit the pool. When a decoding row
finds no free block, the newest admitted group gives its blocks back and is computed again later
(docs/decisions/0003-admission-and-preemption.md).

A decoding row may bring a draft of what follows its last token; as much of it is computed as there is room for, and the
blocks of what turns out wrong are given back (docs/decisions/0018-speculative-decoding.md).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from server.engine.block_tables import BlockTables
from server.engine.prefill_budget import PrefillBudget
from server.engine.sequence import CachedSequence, SequenceGroup, SequenceStatus

PREFILL_PER_DECODE = 4
"""Where no pace is known yet: prefill tokens that a step may add for each row that decodes in it."""

SOURCE_TOKENS_PER_TOKEN = 2
"""How many tokens of a source count as one: they meet an encoder, but neither a vocabulary nor a cache."""


def shared_tokens(max_batch_tokens: int) -> int:
    """Tokens of a step that others wait for, where no pace is known: a part of what it may have when nobody does."""
    return max(max_batch_tokens // 8, 1)


def source_cost(group: SequenceGroup) -> int:
    """What encoding the source of a group takes of a budget."""
    return -(-group.num_source_tokens // SOURCE_TOKENS_PER_TOKEN)


@dataclass(slots=True)
class ScheduledRow:
    """The next `num_tokens` uncomputed tokens of one row, and after the last one the row's draft."""

    group: SequenceGroup
    sequence: CachedSequence
    num_tokens: int

    @property
    def num_step_tokens(self) -> int:
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
    sources: list[SequenceGroup] = field(default_factory=list)
    copies: list[tuple[int, int, int, int]] = field(default_factory=list)
    num_row_tokens: int = 0
    num_decode_tokens: int = 0

    @property
    def groups(self) -> list[SequenceGroup]:
        """Every group of the step, once."""
        return list(dict.fromkeys([*self.sources, *(row.group for row in self.rows)]))

    @property
    def scores_prompts(self) -> bool:
        return any(row.group.has_prompt_to_score for row in self.rows)

    @property
    def num_tokens(self) -> int:
        return self.num_row_tokens + sum(group.num_source_tokens for group in self.sources)

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens that nobody who has begun to answer waits for, as the budget counts them."""
        sources = sum(source_cost(group) for group in self.sources)
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
    max_batch_rows: rows of all running groups together.
    """

    def __init__(self, blocks: BlockTables, max_batch_tokens: int, max_batch_rows: int) -> None:
        self.blocks = blocks
        self.max_batch_tokens = max_batch_tokens
        self.max_batch_rows = max_batch_rows
        self.prefill_budget = PrefillBudget()
        self.waiting: deque[SequenceGroup] = deque()
        self.running: list[SequenceGroup] = []
        self.num_preemptions = 0

    def refusal(self, group: SequenceGroup) -> str | None:
        """Why a group could not run even alone, or None."""
        if group.max_rows > self.max_batch_rows:
            return f"{group.max_rows} beams; at most {self.max_batch_rows} rows run together"
        return self.blocks.refusal(group)

    def add(self, group: SequenceGroup) -> None:
        """Queue a group that `refusal` has nothing against."""
        self.waiting.append(group)

    def remove(self, group: SequenceGroup, corrupt: bool = False) -> None:
        """Take a group out, wherever it is. corrupt: its keys and values, found or its own, may be anything."""
        if group.status is SequenceStatus.RUNNING:
            self.running.remove(group)
        elif group.status is SequenceStatus.WAITING:
            self.waiting.remove(group)
        group.status = SequenceStatus.FINISHED
        self.blocks.release(group, corrupt)

    def restart(self, group: SequenceGroup) -> None:
        """Compute a running group anew from its start, before any that waits, as the longer text that it now is."""
        group.rope_length = group.num_tokens
        self._set_back(group)

    # --------------------------------------------------------------------------------------------------- a step

    def schedule(self) -> Schedule | None:
        """The next step, its blocks taken; None when there is nothing to do. `computed` tells that it was done."""
        schedule = Schedule()
        preempted = self.num_preemptions
        behind = []
        for group in list(self.running):
            if not group.is_ready_to_decode:
                behind.append(group)
            elif group.status is SequenceStatus.RUNNING:
                self._decode(group, schedule)
        budget = self.max_batch_tokens - len(schedule.rows)
        budget -= self._draft(schedule, budget)
        # Of rows that decode, only those that have begun to answer are decode tokens; the rest are short prompts.
        schedule.num_decode_tokens = sum([row.num_step_tokens for row in schedule.rows if row.group.num_generated > 0])
        if behind or self.waiting:
            budget = min(budget, self._room(schedule))
            for group in behind:
                if group.status is SequenceStatus.RUNNING:
                    budget -= self._prefill(group, schedule, budget)
            if self.num_preemptions == preempted:
                self._admit(schedule, budget)
        schedule.num_row_tokens = sum([row.num_step_tokens for row in schedule.rows])
        return schedule if schedule.rows or schedule.sources else None

    def computed(self, schedule: Schedule) -> None:
        """The step is done: its keys and values are in the cache."""
        for row in schedule.rows:
            row.sequence.num_computed_tokens += row.num_tokens
        for group in schedule.sources:
            group.source_encoded = True
            group.source_frames = b""

    def append(self, group: SequenceGroup, tokens: list[int]) -> None:
        """New tokens of a single row: all but the last were in its draft, so their keys and values are in the cache."""
        (row,) = group.sequences
        row.tokens += tokens
        row.num_computed_tokens += len(tokens) - 1
        self.blocks.publish(group)
        if row.draft:
            row.draft = []
            self.blocks.shorten(row)

    def retry_without_draft(self, group: SequenceGroup) -> None:
        """Compute a running group again, without drafts: one of them may have corrupt what it has computed."""
        group.accepts_drafts = False
        self._preempt(group)

    def _decode(self, group: SequenceGroup, schedule: Schedule) -> None:
        while self.blocks.lacks_blocks(group):
            newest = self.running[-1]
            self._preempt(newest)
            if newest is group:
                return
        schedule.copies += self.blocks.make_writable(group)
        schedule.rows += [ScheduledRow(group, row, 1) for row in group.sequences]

    def _room(self, schedule: Schedule) -> int:
        """How many tokens those bear who wait for the next one of theirs (docs/decisions/0026-bursts.md)."""
        had = [group.num_generated for group in schedule.groups]
        settled, beginners = sum(count > 1 for count in had), had.count(1)
        if not settled + beginners:
            return self.max_batch_tokens
        free_rows = self.max_batch_rows - sum(group.max_rows for group in self.running)
        newcomers = len(self.running) - settled - beginners + min(len(self.waiting), free_rows)
        room = self.prefill_budget.max_prefill_tokens(settled, beginners, newcomers, schedule.num_decode_tokens)
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

    def _prefill(self, group: SequenceGroup, schedule: Schedule, budget: int) -> int:
        """Schedule what the budget allows of the tokens a group is behind. Returns how many that are."""
        used = 0
        for row, behind in group.uncomputed_tokens():
            count = min(behind, budget - used)
            if count <= 0:
                break
            schedule.rows.append(ScheduledRow(group, row, count))
            used += count
        return used

    def _admit(self, schedule: Schedule, budget: int) -> None:
        rows = sum(group.max_rows for group in self.running)
        prefills = any(row.num_tokens > 1 for row in schedule.rows)
        while self.waiting and budget > 0:
            group = self.waiting[0]
            rows += group.max_rows
            if rows > self.max_batch_rows:
                return
            found = self.blocks.find(group)
            if not self.blocks.fits(group, found) or self.blocks.is_being_computed(group, len(found), self.running):
                return
            source = 0 if group.source_encoded else source_cost(group)
            # A source is encoded whole. One that exceeds the budget goes when no other prefill does.
            if source > budget and prefills:
                return
            self.waiting.popleft()
            group.status = SequenceStatus.RUNNING
            self.running.append(group)
            self.blocks.take(group, found)
            if source:
                schedule.sources.append(group)
                budget = max(budget - source, 1)
            budget -= self._prefill(group, schedule, budget)
            prefills = True

    def _preempt(self, group: SequenceGroup) -> None:
        """Give the blocks of a running group back; it will be admitted again before all others."""
        self.num_preemptions += 1
        group.preempted_tokens = sum(row.num_computed_tokens for row in group.sequences)
        self._set_back(group)

    def _set_back(self, group: SequenceGroup) -> None:
        self.blocks.set_back(group)
        self.running.remove(group)
        group.status = SequenceStatus.WAITING
        self.waiting.appendleft(group)
