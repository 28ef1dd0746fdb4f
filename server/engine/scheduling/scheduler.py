"""Decides what one step computes. Imports no torch; `BlockTables` assigns the KV blocks.

A step can mix prefill and decoding. Each sequence has tokens, some of them computed, and each step computes more of
them under a token budget. Sequences that lack one token come first: they decode, and the budget does not limit them.
Chunks of sequences that lack more tokens follow, then new groups. Calls with unfinished prompts share the budget.

A group is admitted if its present tokens fit the pool. If a decoding sequence finds no free block, the newest admitted
group is preempted: it frees its blocks and is computed again later
(docs/decisions/0003-admission-and-preemption.md). API keys, and then calls, take turns to start, and share the rows: a
group that finds no room takes that of a key or call with more rows (`fair_rows`).

A decoding sequence may have a draft after its last token. The step computes as much of it as the budget and the pool
allow, and the blocks of rejected tokens are freed (docs/decisions/0018-speculative-decoding.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from server.engine.cache.block_tables import BlockTables
from server.engine.cache.state_tables import StateBlockTables
from server.engine.scheduling.fair_rows import MAX_STARTS, FairRows
from server.engine.scheduling.prefill_budget import PREFILL_PER_DECODE, PrefillBudget, shared_tokens
from server.engine.scheduling.round_robin import RunningRows, WaitingGroups
from server.engine.sequences.sequence import CachedSequence, SequenceGroup, SequenceStatus

SHORT_PART = 8
"""Short groups may take an eighth of the rows from others."""
SOURCE_TOKENS_PER_TOKEN = 2
"""Source tokens that cost as much as one decoder token: they need no output head and no self-attention cache."""


def source_cost(group: SequenceGroup) -> int:
    """Cost of encoding the source of a group, in tokens of the budget."""
    return -(-group.num_source_tokens // SOURCE_TOKENS_PER_TOKEN)


@dataclass(slots=True)
class ScheduledRow:
    """One row of a step: the next `num_tokens` uncomputed tokens of a sequence, followed by its draft."""

    group: SequenceGroup
    sequence: CachedSequence
    num_tokens: int

    @property
    def num_step_tokens(self) -> int:
        """Tokens of the step in this row, draft included."""
        return self.num_tokens + len(self.sequence.draft)

    @property
    def needs_logits(self) -> bool:
        """Whether the step computes the last token of the sequence."""
        sequence = self.sequence
        return self.num_tokens == len(sequence.tokens) - sequence.num_computed_tokens


@dataclass(slots=True)
class Schedule:
    """One step: encode sources, copy blocks, then compute rows.

    decoding: groups that decode. Each of their sequences has one row: the accepted tokens that it computes again, its
        last token, and its draft.
    sequences: the sequences of these groups, in order.
    chunks: the other rows: parts of prompts, and of texts that are computed again; all rows of a step that is launched
        ahead.
    sources: groups whose sources are encoded.
    copies: copies within the `self` pool: (source block, destination block, first slot, end slot).
    num_row_tokens: tokens of all rows. Set when the schedule is complete.
    num_decode_tokens: tokens of decoding rows that already have a generated token. Set when the schedule is complete.
    is_plain: each row of `sequences` computes one token. Set when the schedule is complete.
    """

    decoding: list[SequenceGroup] = field(default_factory=list)
    sequences: list[CachedSequence] = field(default_factory=list)
    chunks: list[ScheduledRow] = field(default_factory=list)
    sources: list[SequenceGroup] = field(default_factory=list)
    copies: list[tuple[int, int, int, int]] = field(default_factory=list)
    num_row_tokens: int = 0
    num_decode_tokens: int = 0
    is_plain: bool = True
    _rows: list[ScheduledRow] | None = field(default=None, init=False, repr=False)

    @property
    def num_rows(self) -> int:
        return len(self.sequences) + len(self.chunks)

    @property
    def rows(self) -> list[ScheduledRow]:
        """All rows: those of `sequences`, then the chunks.

        Made at the first call, which must come before the step is computed. A decode step of many beams does without.
        """
        if self._rows is None:
            owners = [group for group in self.decoding for _ in group.sequences]
            pairs = zip(owners, self.sequences, strict=True)
            self._rows = [ScheduledRow(group, row, 1 + row.repeated_tokens) for group, row in pairs] + self.chunks
        return self._rows

    @property
    def ready(self) -> list[SequenceGroup]:
        """Groups whose last tokens are computed, so that they get their next ones, in the order of their rows."""
        return [*self.decoding, *dict.fromkeys([row.group for row in self.chunks if row.needs_logits])]

    @property
    def groups(self) -> list[SequenceGroup]:
        """All groups of the step, each once."""
        return list(dict.fromkeys([*self.sources, *self.decoding, *(row.group for row in self.chunks)]))

    @property
    def scores_prompts(self) -> bool:
        return any(group.has_prompt_to_score for group in self.groups)

    @property
    def has_prefill(self) -> bool:
        """Whether a row computes more than the last token of a sequence and accepted draft tokens."""
        return any(row.num_tokens > 1 + row.sequence.repeated_tokens for row in self.chunks)

    @property
    def num_tokens(self) -> int:
        return self.num_row_tokens + sum(group.num_source_tokens for group in self.sources)

    @property
    def num_prefill_tokens(self) -> int:
        """Prefill and source tokens of the step, counted as in the budget."""
        sources = sum(source_cost(group) for group in self.sources)
        return self.num_row_tokens - self.num_decode_tokens + sources

    @property
    def phase(self) -> Literal["prefill", "decode", "mixed"]:
        if self.num_decode_tokens == 0:
            return "prefill"
        return "decode" if self.num_decode_tokens == self.num_tokens else "mixed"

    def decode(self, group: SequenceGroup) -> None:
        """Add a group that is ready to decode."""
        self.decoding.append(group)
        self.sequences += group.sequences

    def count_tokens(self) -> None:
        """Set the numbers of tokens. A prompt that lacks one token has no generated token and counts as prefill."""
        prompts = sum(len(group.sequences) for group in self.decoding if group.num_generated == 0)
        self.num_decode_tokens = len(self.sequences) - prompts
        self.num_row_tokens = len(self.sequences) + sum(row.num_step_tokens for row in self.chunks)
        drafting = [group for group in self.decoding if _further_tokens(group)]
        self.is_plain = not drafting
        for group in drafting:
            self.num_row_tokens += _further_tokens(group)
            self.num_decode_tokens += _further_tokens(group) if group.num_generated > 0 else 0


def _further_tokens(group: SequenceGroup) -> int:
    """Tokens that a decoding group computes besides the last ones of its sequences. Beams have none."""
    first = group.sequences[0]
    return first.repeated_tokens + len(first.draft)


class Scheduler:
    """Decides which waiting and running groups of one model each step computes.

    blocks: KV blocks of the groups.
    max_batch_tokens: maximum cost of a step with prefill. Sources have the cost `source_cost`. A step that delays
        running streams has the smaller limit of `prefill_budget`, which learns from the measured time of each step.
    max_batch_rows: maximum number of rows of all running groups.
    """

    def __init__(self, blocks: BlockTables, max_batch_tokens: int, max_batch_rows: int) -> None:
        self.blocks = blocks
        self.max_batch_tokens = max_batch_tokens
        self.max_batch_rows = max_batch_rows
        self.prefill_budget = PrefillBudget()
        self.running_rows = RunningRows()
        self._max_short = max(max_batch_rows // SHORT_PART, 1)
        self.waiting = WaitingGroups(self.running_rows, self._max_short)
        self.running: list[SequenceGroup] = []
        self.num_preemptions = 0
        self._states = blocks if isinstance(blocks, StateBlockTables) else None

    @property
    def decode_seconds(self) -> float | None:
        """Expected duration of a pure decode step of the running groups; None before such steps were measured."""
        return self.prefill_budget.decode_seconds(sum(len(group.sequences) for group in self.running))

    @property
    def has_prefill(self) -> bool:
        """Whether prompts wait, or are partly computed."""
        return bool(self.waiting) or not all(group.is_ready_to_decode or group.is_computed for group in self.running)

    @property
    def can_admit(self) -> bool:
        """Whether rows and blocks are free for the next waiting group, or another group makes room for it."""
        if not self.waiting:
            return False
        group = self.waiting.next()
        if self._has_rows(group) and self.blocks.fits(group, self.blocks.find(group)):
            return True
        return FairRows(self.running_rows, self.running, self._max_short).victim(group) is not None

    def _has_rows(self, group: SequenceGroup) -> bool:
        return self.running_rows.total + group.max_rows <= self.max_batch_rows

    def refusal(self, group: SequenceGroup) -> str | None:
        """Why a group could not run even alone, or None if it can."""
        if group.max_rows > self.max_batch_rows:
            return (
                f"{group.max_rows:,} beams need as many rows of a step, but at most {self.max_batch_rows:,} run "
                "together. Lower num_beams, or start the server with a larger --max-batch-rows."
            )
        return self.blocks.refusal(group)

    def add(self, group: SequenceGroup) -> None:
        """Queue a group that `refusal` accepts."""
        self.waiting.add(group)

    def remove(self, group: SequenceGroup, corrupt: bool = False) -> None:
        """Remove a group and free its blocks.

        corrupt: its keys and values may be wrong, including those that it found in the prefix cache.
        """
        if group.status is SequenceStatus.RUNNING:
            self.running.remove(group)
            self.running_rows.remove(group)
        elif group.status is SequenceStatus.WAITING:
            self.waiting.remove(group)
        group.status = SequenceStatus.FINISHED
        self.blocks.release(group, corrupt)

    def restart(self, group: SequenceGroup) -> None:
        """Compute a running group again from its first token, before the waiting groups of its call, with rotary
        embeddings for its present length.
        """
        group.outgrow()
        self._requeue(group)

    # --------------------------------------------------------------------------------------------------- a step

    def schedule(self) -> Schedule | None:
        """The next step, with its blocks allocated; None if there is no work. Call `computed` after the step."""
        schedule = Schedule()
        self._make_room()
        preempted = self.num_preemptions
        behind = []
        for group in list(self.running):
            if group.is_ready_to_decode:
                if group.status is SequenceStatus.RUNNING:
                    self._decode(group, schedule)
            elif not group.is_computed:  # a computed group waits for the grammar of its next token
                behind.append(group)
        budget = self.max_batch_tokens - len(schedule.sequences)
        budget -= self._allocate_drafts(schedule, budget)
        schedule.count_tokens()
        if behind or self.waiting:
            budget = min(budget, self._prefill_limit(schedule))
            behind = [group for group in behind if group.status is SequenceStatus.RUNNING]
            if self.num_preemptions == preempted:
                behind += self._admit_shorter(behind)
            budget -= self._prefill_in_shares(behind, schedule, budget)
            if self.num_preemptions == preempted:
                self._admit(schedule, budget)
            schedule.count_tokens()
        if self._states is not None:
            for row in schedule.rows:
                self._states.prepare(row.group, row.sequence, row.num_tokens)
        return schedule if schedule.num_rows or schedule.sources else None

    def computed(self, schedule: Schedule) -> None:
        """Record that a step was computed: its keys and values are in the cache."""
        if schedule.is_plain:
            for sequence in schedule.sequences:
                sequence.num_computed_tokens += 1
        for row in schedule.chunks if schedule.is_plain else schedule.rows:
            row.sequence.num_computed_tokens += row.num_tokens
        if self._states is not None:
            for row in schedule.rows:
                self._states.computed(row.sequence)
        for group in schedule.sources:
            group.source_encoded = True
            group.source_frames = b""

    def append(self, group: SequenceGroup, tokens: list[int]) -> None:
        """Append new tokens to a single sequence. All but the last come from its draft."""
        (row,) = group.sequences
        row.tokens += tokens
        if row.draft:
            row.num_computed_tokens += self.blocks.accept(row, len(tokens) - 1)
        self.blocks.publish(group)
        if row.draft:
            row.draft = []
            self.blocks.shorten(row)

    def retry_without_draft(self, group: SequenceGroup) -> None:
        """Preempt a running group and stop drafting for it: a draft may have corrupted its keys and values."""
        group.accepts_drafts = False
        self._preempt(group)

    def _decode(self, group: SequenceGroup, schedule: Schedule) -> None:
        while self.blocks.lacks_blocks(group):
            newest = self.running[-1]
            self._preempt(newest)
            if newest is group:
                return
        schedule.copies += self.blocks.make_writable(group)
        schedule.decode(group)

    def _prefill_limit(self, schedule: Schedule) -> int:
        """Prefill tokens that the step may add to its decoding rows (docs/decisions/0026-bursts.md)."""
        generated = [group.num_generated for group in schedule.groups]
        decoding, just_started = sum(count > 1 for count in generated), generated.count(1)
        if not decoding + just_started:
            return self.prefill_budget.tokens_of_long_steps(self.max_batch_tokens)
        free_rows = self.max_batch_rows - self.running_rows.total
        running = sum(not group.is_computed for group in self.running)
        waiting = running - decoding - just_started + min(len(self.waiting), free_rows)
        limit = self.prefill_budget.max_prefill_tokens(decoding, just_started, waiting, schedule.num_decode_tokens)
        if limit is None:
            return max(PREFILL_PER_DECODE * schedule.num_rows, shared_tokens(self.max_batch_tokens))
        return limit

    def _allocate_drafts(self, schedule: Schedule, budget: int) -> int:
        """Allocate blocks for the drafts of decoding rows. Returns the number of draft tokens.

        Drafts are shortened to the budget and the free blocks. No group is preempted for a draft.
        """
        used = 0
        for row in schedule.sequences:
            if row.draft:
                del row.draft[self.blocks.extend(row, min(budget - used, len(row.draft))) :]
                used += len(row.draft)
        return used

    def _prefill(self, group: SequenceGroup, schedule: Schedule, budget: int) -> int:
        """Schedule uncomputed tokens of a group within the budget. Returns the part of the budget that is used up."""
        used = 0
        for row, behind in group.uncomputed_tokens():
            count = min(behind, budget - used)
            if count <= 0:
                break
            if self._states is not None:
                count = self._states.whole_chunks(group, row, count, schedule.has_prefill)
                if count == 0:
                    return budget
            schedule.chunks.append(ScheduledRow(group, row, count))
            used += count
        return used

    def _make_room(self) -> None:
        """Preempt groups of keys and calls with many rows for the next groups of those with few, if these lack room."""
        if not self.waiting or (self._has_rows(self.waiting.next()) and self._fits(self.waiting.next())):
            return
        fair = FairRows(self.running_rows, self.running, self._max_short)
        for group in self.waiting.heads()[:MAX_STARTS]:
            while fair.total + group.max_rows > self.max_batch_rows or not self._fits(group):
                victim = fair.victim(group)
                if victim is None:
                    return
                fair.preempt(victim)
                self._preempt(victim)
            fair.start(group)

    def _fits(self, group: SequenceGroup) -> bool:
        return self.blocks.fits(group, self.blocks.find(group))

    def _admit_shorter(self, behind: list[SequenceGroup]) -> list[SequenceGroup]:
        """Admit the next groups of other calls whose prompts are shorter than the longest rest of a running prompt.

        behind: running groups with unfinished prompts. Without this, a short prompt would wait until a long one that
        came before it is computed.
        """
        if not behind or not self.waiting:
            return []
        longest = max(sum(count for _, count in group.uncomputed_tokens()) for group in behind)
        calls = {group.call_id for group in behind}
        admitted: list[SequenceGroup] = []
        for group in self.waiting.heads():
            if not self._has_rows(group) or len(admitted) == MAX_STARTS:
                break
            if group.call_id in calls or group.num_source_tokens or group.num_tokens >= longest:
                continue
            found = self.blocks.find(group)
            if self.blocks.fits(group, found) and not self.blocks.is_being_computed(group, len(found), self.running):
                self._start(group, found)
                admitted.append(group)
        return admitted

    def _prefill_in_shares(self, behind: list[SequenceGroup], schedule: Schedule, budget: int) -> int:
        """Schedule uncomputed tokens of running groups, in equal shares of the budget for their calls.

        What a call does not need is divided among the others. Returns the part of the budget that is used up.
        """
        by_call: dict[int, list[SequenceGroup]] = {}
        for group in behind:
            by_call.setdefault(group.call_id, []).append(group)
        needs = {
            call_id: sum(count for group in groups for _, count in group.uncomputed_tokens())
            for call_id, groups in by_call.items()
        }
        used = 0
        for number, call_id in enumerate(sorted(needs, key=lambda call_id: needs[call_id])):
            share = -(-(budget - used) // (len(needs) - number))
            for group in by_call[call_id]:
                spent = self._prefill(group, schedule, share)
                share -= spent
                used += spent
        return used

    def _admit(self, schedule: Schedule, budget: int) -> None:
        prefills = any(row.num_tokens > 1 for row in schedule.chunks)
        later: set[int] = set()
        while self.waiting and budget > 0:
            group = self.waiting.next()
            if later:
                others = [head for head in self.waiting.heads() if head.call_id not in later]
                if not others:
                    return
                group = others[0]
            if not self._has_rows(group):
                return
            found = self.blocks.find(group)
            if not self.blocks.fits(group, found):
                return
            if self.blocks.is_being_computed(group, len(found), self.running):
                # The call waits for its own prompt, or one like it. Other calls do not.
                later.add(group.call_id)
                continue
            source = 0 if group.source_encoded else source_cost(group)
            # A source is encoded whole. One that exceeds the budget waits for a step without other prefill.
            if source > budget and prefills:
                return
            self._start(group, found)
            if source:
                schedule.sources.append(group)
                budget = max(budget - source, 1)
            budget -= self._prefill(group, schedule, budget)
            prefills = True

    def _start(self, group: SequenceGroup, found: list[int]) -> None:
        """Let a waiting group run. found: its blocks in the prefix cache."""
        self.waiting.take(group)
        group.status = SequenceStatus.RUNNING
        self.running.append(group)
        self.running_rows.add(group)
        self.blocks.take(group, found)

    def _preempt(self, group: SequenceGroup) -> None:
        """Free the blocks of a running group, and queue it before the waiting groups of its call."""
        self.num_preemptions += 1
        group.preempted_tokens = sum(row.num_computed_tokens for row in group.sequences)
        self._requeue(group)

    def _requeue(self, group: SequenceGroup) -> None:
        self.blocks.release_for_recompute(group)
        self.running.remove(group)
        self.running_rows.remove(group)
        group.status = SequenceStatus.WAITING
        self.waiting.resume_first(group)
