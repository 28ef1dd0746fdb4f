"""Decides what one step computes. Imports no torch; `BlockTables` assigns the KV blocks.

A step can mix prefill and decoding. Each sequence has tokens, some of them computed, and each step computes more of
them under a token budget. Sequences with one uncomputed token come first: they decode, and the budget does not limit
them. Chunks of sequences with more uncomputed tokens follow, then new groups. Calls with unfinished prompts share the
budget.

A group is admitted if its present tokens fit the pool. If a decoding sequence finds no free block, the newest admitted
group is preempted: it frees its blocks and is computed again later
(docs/decisions/0003-admission-and-preemption.md). API keys, and then calls, take turns to start. If no row or block is
free for a waiting group, a group of a key or call with more rows is preempted for it (`fair_rows`).

Short groups (few tokens to generate) may start in a separate step before the step of all groups (`short_steps`).

A decoding sequence may have a draft after its last token. The step computes as many draft tokens as the budget and the
pool allow. The blocks of rejected tokens are freed (docs/decisions/0018-speculative-decoding.md).
"""

from __future__ import annotations

from itertools import islice

from server.engine.cache.block_tables import BlockTables
from server.engine.cache.state_tables import StateBlockTables
from server.engine.scheduling.fair_rows import MAX_STARTS, FairRows
from server.engine.scheduling.prefill_budget import PREFILL_PER_DECODE, PrefillBudget, shared_tokens
from server.engine.scheduling.round_robin import RunningRows, WaitingGroups
from server.engine.scheduling.schedule import Schedule, ScheduledRow, source_cost
from server.engine.scheduling.short_steps import ShortSteps
from server.engine.sequences.sequence import SequenceGroup, SequenceStatus

SHORT_PART = 8
"""At most an eighth of the rows is given to short groups before other groups."""


class Scheduler:
    """Decides which waiting and running groups of one model each step computes.

    blocks: KV blocks of the groups.
    max_batch_tokens: maximum number of tokens of a step with prefill; two source tokens count as one (`source_cost`). A
        step that delays running streams has the smaller limit of `prefill_budget`, which learns from measured steps.
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
        self._gave_room: dict[SequenceGroup, SequenceGroup] = {}
        """Preempted group to the waiting group for which it was preempted.

        The preempted group must not start before that waiting group.
        """
        self._short_steps = ShortSteps()
        self._states = blocks if isinstance(blocks, StateBlockTables) else None

    @property
    def decode_seconds(self) -> float | None:
        """Expected duration in seconds of a decode-only step of the running groups; None before one was measured."""
        return self.prefill_budget.decode_seconds(sum(len(group.sequences) for group in self.running))

    @property
    def has_prefill(self) -> bool:
        """Whether prompts wait, or are partly computed."""
        return bool(self.waiting) or not all(group.is_ready_to_decode or group.is_computed for group in self.running)

    @property
    def can_admit(self) -> bool:
        """Whether the next waiting group could start: rows and blocks are free, or a group may be preempted for it."""
        group = self._next()
        if group is None:
            return False
        if self._has_rows(group) and self._fits(group):
            return True
        return FairRows(self.running_rows, self.running, self._max_short).victim(group) is not None

    def _has_rows(self, group: SequenceGroup) -> bool:
        return self.running_rows.total + group.max_rows <= self.max_batch_rows

    def refusal(self, group: SequenceGroup) -> str | None:
        """Why a group cannot run even if no other group runs; None if it can."""
        if group.max_rows > self.max_batch_rows:
            return (
                f"{group.max_rows:,} beams need as many rows of a step, but at most {self.max_batch_rows:,} run "
                "together. Lower num_beams, or start the server with a larger --max-batch-rows."
            )
        return self.blocks.refusal(group)

    def add(self, group: SequenceGroup) -> None:
        """Queue a group that fits, which means that `refusal` returns None for it."""
        self.waiting.add(group)

    def remove(self, group: SequenceGroup, corrupt: bool = False) -> None:
        """Remove a group and free its blocks.

        corrupt: whether the keys and values of the group may be wrong, including those from the prefix cache.
        """
        if group.status is SequenceStatus.RUNNING:
            self.running.remove(group)
            self.running_rows.remove(group)
        elif group.status is SequenceStatus.WAITING:
            self.waiting.remove(group)
        group.status = SequenceStatus.FINISHED
        self._gave_room.pop(group, None)
        self._waits_no_longer(group)
        self.blocks.release(group, corrupt)

    def restart(self, group: SequenceGroup) -> None:
        """Compute a running group again from its first token, with rotary embeddings for its present length.

        The group is queued before the waiting groups of its call.
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
        return self._prepared(schedule, is_short=False)

    def schedule_short(self) -> Schedule | None:
        """A step of the short groups that can start, with its blocks allocated. None if there is no such step, so that
        `schedule` must be called.

        There is such a step only if the step of all groups is expected to take much longer (`ShortSteps`).
        """
        # Short groups alone share their steps: a step for each prompt would be slower for all.
        if self.waiting.only_short or not self.waiting.short_heads():
            return None
        full_seconds = self._full_step_seconds()
        if full_seconds is None:
            return None
        self._make_room()
        schedule, tokens = Schedule(), 0
        for group in self.waiting.short_heads()[:MAX_STARTS]:
            if group.num_generated or group in self._gave_room or not self._has_rows(group):
                continue
            found = self.blocks.find(group)
            source = 0 if group.source_encoded else source_cost(group)
            cached = self.blocks.num_cached(group, found)
            needed = source + group.num_tokens - cached * self.blocks.self_pool.block_size
            seconds = self.prefill_budget.expected_seconds(0, tokens + needed)
            if seconds is None or not self._short_steps.allows(seconds, full_seconds):
                continue
            if not self.blocks.fits(group, found) or self.blocks.is_being_computed(group, cached, self.running):
                continue
            self._start(group, found)
            if source:
                schedule.sources.append(group)
            tokens += source + self._prefill(group, schedule, max(self.max_batch_tokens - tokens - source, 1))
        schedule.count_tokens()
        return self._prepared(schedule, is_short=True)

    def _full_step_seconds(self) -> float | None:
        """Expected duration in seconds of the step of all groups; None before such steps were measured.

        If the step has decoding rows, its prompts are left out of the estimate, and the real step takes longer.
        """
        decoding = sum(len(group.sequences) for group in self.running if group.is_ready_to_decode)
        if decoding:
            return self.prefill_budget.expected_seconds(decoding, 0)
        waiting = islice(self.waiting, max(self.max_batch_rows - self.running_rows.total, 0))
        tokens = sum(map(_num_uncomputed, self.running)) + sum(group.num_tokens for group in waiting)
        longest = self.prefill_budget.tokens_of_long_steps(self.max_batch_tokens)
        return self.prefill_budget.expected_seconds(0, min(tokens, longest))

    def _prepared(self, schedule: Schedule, is_short: bool) -> Schedule | None:
        """Allocate state slots for the rows of a schedule, and return the schedule; None for an empty schedule.

        is_short: whether the schedule is for a step of short groups.
        """
        if not (schedule.num_rows or schedule.sources):
            return None
        self._short_steps.count(is_short)
        if self._states is not None:
            for row in schedule.rows:
                self._states.prepare(row.group, row.sequence, row.num_tokens)
        return schedule

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
        """Most prefill tokens that the step may add to its decoding rows (docs/decisions/0026-bursts.md)."""
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
        """Schedule uncomputed tokens of a group within the budget. Returns the number of budget tokens used up.

        If a whole chunk of a model with mixers does not fit, the rest of the budget counts as used up.
        """
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
        """Make room for waiting groups whose keys or calls have few running rows, if they lack rows or blocks.

        Preempts groups of keys and calls that have more rows (`fair_rows`).
        """
        group = self._next()
        if group is None or (self._has_rows(group) and self._fits(group)):
            return
        reading = [group for group in self.running if not (group.is_ready_to_decode or group.is_computed)]
        rests = [_num_uncomputed(group) for group in reading]
        fair = FairRows(self.running_rows, self.running, self._max_short)
        for group in self._heads()[:MAX_STARTS]:
            if self.blocks.lacks_source_blocks(group):
                self._waits_no_longer(group)  # no preemption frees such blocks
                continue
            if sum(rests) >= self.max_batch_tokens and group.num_tokens >= max(rests):
                continue  # the running prompts come first, so it could not start in this step
            while fair.total + group.max_rows > self.max_batch_rows or not self._fits(group):
                victim = fair.victim(group)
                if victim is None:
                    return
                fair.preempt(victim)
                self._preempt(victim)
                self._gave_room[victim] = group
            fair.start(group)

    def _next(self) -> SequenceGroup | None:
        """The waiting group to start next; None if no group can start."""
        if not self.waiting:
            return None
        group = self.waiting.next()
        if group not in self._gave_room:
            return group
        return next(iter(self._heads()), None)

    def _heads(self) -> list[SequenceGroup]:
        """The next waiting group of each call, without groups that were preempted for a group that still waits.

        A group that was preempted would take the free room, and would be preempted again in the next step.
        """
        return [group for group in self.waiting.heads() if group not in self._gave_room]

    def _waits_no_longer(self, group: SequenceGroup) -> None:
        """Let the groups that were preempted for a waiting group start again.

        group: the waiting group, which starts, ends, or cannot start for now.
        """
        if self._gave_room:
            self._gave_room = {giver: taker for giver, taker in self._gave_room.items() if taker is not group}

    def _fits(self, group: SequenceGroup) -> bool:
        return self.blocks.fits(group, self.blocks.find(group))

    def _admit_shorter(self, behind: list[SequenceGroup]) -> list[SequenceGroup]:
        """Admit waiting groups with a short prompt before a long running prompt is computed. Returns these groups.

        A prompt is short if it has fewer tokens than the running prompt with the most uncomputed tokens. Only the first
        waiting group of each call is considered. Calls of groups in `behind` are left out.

        behind: running groups with unfinished prompts.
        """
        if not behind or not self.waiting:
            return []
        longest = max(map(_num_uncomputed, behind))
        calls = {group.call_id for group in behind}
        admitted: list[SequenceGroup] = []
        for group in self._heads():
            if not self._has_rows(group) or len(admitted) == MAX_STARTS:
                break
            if group.call_id in calls or group.num_source_tokens or group.num_tokens >= longest:
                continue
            found = self.blocks.find(group)
            cached = self.blocks.num_cached(group, found)
            if self.blocks.fits(group, found) and not self.blocks.is_being_computed(group, cached, self.running):
                self._start(group, found)
                admitted.append(group)
        return admitted

    def _prefill_in_shares(self, behind: list[SequenceGroup], schedule: Schedule, budget: int) -> int:
        """Schedule uncomputed tokens of running groups. Each call gets an equal share of the budget.

        If a call needs less than its share, the rest is divided among the other calls.

        behind: running groups with unfinished prompts. budget: in tokens.
        Returns the number of budget tokens used up.
        """
        by_call: dict[int, list[SequenceGroup]] = {}
        for group in behind:
            by_call.setdefault(group.call_id, []).append(group)
        needs = {call_id: sum(map(_num_uncomputed, groups)) for call_id, groups in by_call.items()}
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
        lacks_source = False
        while budget > 0:
            group = self._next()
            if later:
                heads = [head for head in self._heads() if head.cross_block_table or not lacks_source]
                group = next((head for head in heads if head.call_id not in later), None)
            if group is None or not self._has_rows(group):
                return
            found = self.blocks.find(group)
            if self.blocks.lacks_source_blocks(group):
                # Preempted groups that hold source blocks free them when they end. They do not wait for this group.
                later.add(group.call_id)
                lacks_source = True
                continue
            if not self.blocks.fits(group, found):
                return
            if self.blocks.is_being_computed(group, self.blocks.num_cached(group, found), self.running):
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
        """Move a waiting group to the running groups and allocate its blocks. found: its blocks in the prefix cache."""
        self.waiting.take(group)
        self._waits_no_longer(group)
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


def _num_uncomputed(group: SequenceGroup) -> int:
    """Number of prefill tokens that a group still has to compute."""
    return sum(count for _, count in group.uncomputed_tokens())
