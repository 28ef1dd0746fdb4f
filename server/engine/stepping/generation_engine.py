"""Runs the `Generate` requests of one model: makes sequence groups, runs steps, and records events and results.

Times are seconds of `time.monotonic()`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from itertools import chain
from typing import Literal

import torch

from models.backends.logits import DecoderOutput
from server.engine.choosing.finished_groups import FinishedGroups
from server.engine.choosing.prompt_scores import score_prompts
from server.engine.choosing.selection import Selection, select
from server.engine.device.output_rows import output_of, output_without, step_logits_request
from server.engine.device.runner import Runner
from server.engine.drafting.drafts import Drafter
from server.engine.grammars.grammar_masks import GrammarMasks
from server.engine.grammars.grammar_waits import TOO_SLOW, GrammarWaits
from server.engine.scheduling.model_limits import ModelLimits
from server.engine.scheduling.prefill_budget import PrefillBudget
from server.engine.scheduling.schedule import Schedule
from server.engine.scheduling.scheduler import Scheduler
from server.engine.sequences.events import NOT_FINITE, STEP_FAILED, TIMED_OUT, EngineEvents, StepFailed
from server.engine.sequences.sequence import SequenceGroup, SequenceStatus
from server.engine.stepping.drafting import Drafting
from server.engine.stepping.new_groups import NewGroups
from server.engine.stepping.new_tokens import NewTokens
from server.engine.stepping.steps_ahead import LaunchedStep, StepsAhead
from server.ipc.wire.generate_messages import FinishReason, Generate, GenerateRow, PromptScored, SequenceMessage, Tokens
from server.ipc.wire.step_messages import Failed, StepTiming

log = logging.getLogger("triptych.engine")


class GenerationEngine:
    """Runs the sequence groups of one model, from `add` to `finish`.

    scheduler: decides what each step computes. runner: computes steps. limits: limits of the model.
    drafter: proposes draft tokens; None without speculative decoding.
    new_tokens: gives chosen tokens to their groups, and counts draft tokens.
    """

    def __init__(
        self, name: str, scheduler: Scheduler, runner: Runner, limits: ModelLimits, drafter: Drafter | None = None
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.runner = runner
        self.limits = limits
        self._drafting = None if drafter is None else Drafting(name, drafter)
        self.is_encoder_decoder = scheduler.blocks.cross_pool is not None
        self._new_groups = NewGroups(name, limits, scheduler, lambda: runner.model.cross_attention_layers())
        self.new_tokens = NewTokens(scheduler, limits.restart_tokens)
        self._ahead = StepsAhead(scheduler, runner, self._drafting)
        self.grammar_waits: GrammarWaits | None = None
        self._finished_groups = FinishedGroups(runner)
        if self._drafting is not None and self._drafting.costs is not None:
            scheduler.prefill_budget = PrefillBudget(decode_steps=self._drafting.costs)

    @property
    def drafter(self) -> Drafter | None:
        """Proposes draft tokens; None without speculative decoding."""
        return None if self._drafting is None else self._drafting.drafter

    @drafter.setter
    def drafter(self, drafter: Drafter | None) -> None:
        self._drafting = self._ahead.drafting = None if drafter is None else Drafting(self.name, drafter)

    def learn_step_times_again(self, has_fixed_part: bool) -> None:
        """Forget the durations of all steps so far.

        has_fixed_part: whether later prefill work has a fixed cost per step, as with captured decode steps.
        """
        if self._drafting is not None:
            self._drafting.learn_costs_again()
        costs = None if self._drafting is None else self._drafting.costs
        captured = self.runner.captured
        # Sources of an encoder-decoder are encoded in steps of other sizes, and whole.
        sizes = () if captured is None or self.is_encoder_decoder else captured.step_sizes
        self.scheduler.prefill_budget = PrefillBudget(has_fixed_part, costs, sizes)

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running or self._ahead.next or self._finished_groups)

    def give_back_caches(self) -> None:
        """Empty the prefix cache, and return the memory of KV caches and states to the system.

        The model keeps its blocks, which take memory again when they are written. It must have no sequences.
        """
        pools = self.scheduler.blocks.pools.values()
        assert not any(pool.used_blocks for pool in pools), "a model without sequences uses no blocks"
        for pool in pools:
            pool.forget_all()
        self.runner.give_back_caches()
        if self._drafting is not None:
            self._drafting.give_back()

    def set_vocabulary(self, tokens: list[bytes]) -> None:
        """Set the bytes of each token, by id. Needed for grammars, required terms, and stop strings with beams."""
        self.grammar_waits = GrammarWaits(GrammarMasks(tokens, self.limits.vocab_size))
        self._new_groups.token_bytes = tokens

    def take_sequences(self, message: SequenceMessage) -> None:
        """Add a part to a stored set of allowed sequences, or drop a set."""
        self._new_groups.stored_sequences.take(message)

    def accepts(self, message: Generate, events: EngineEvents) -> bool:
        """Whether a message is valid. If it is not, a failure of each of its rows is added to `events`."""
        return self._new_groups.accepts(message, self.grammar_waits is not None, events)

    def add(
        self, message: Generate, rows: Sequence[GenerateRow], events: EngineEvents, now: float
    ) -> list[SequenceGroup]:
        """Queue some rows of a valid message. Rows that exceed a limit fail; rows without new tokens finish at once.

        Returns the sequence groups of the other rows.
        """
        groups = []
        for row in rows:
            group = self._new_groups.make(message, row, now, events)
            if group is None:
                continue
            if self.grammar_waits is not None:
                self.grammar_waits.prepare(group)
            self.scheduler.add(group)
            if row.max_new_tokens == 0:
                self.finish(group, "length", events)
            else:
                groups.append(group)
        return groups

    # ------------------------------------------------------------------------------------------------ one step

    @torch.inference_mode()
    def step(self, events: EngineEvents) -> StepTiming | None:
        """Run one step and append its results to `events`.

        Returns the measurements of the step (seconds, rows, tokens). None if there was nothing to compute; even then,
        events may have been added.
        Raises StepFailed if the step raises an error. Its sequence groups have then ended with `engine_error`.
        """
        started = time.monotonic()
        if self.grammar_waits is not None:
            self._continue_held(self.grammar_waits, events)
        launched = self._ahead.take()
        schedule = self.scheduler.schedule_short() if launched is None else launched.schedule
        if schedule is None:
            if self._drafting is not None:
                self._drafting.propose(self.scheduler.running)
            schedule = self.scheduler.schedule()
        if self.grammar_waits is not None:
            self.grammar_waits.drop_preempted()
        if schedule is None:
            self._finished_groups.align(chain(self.scheduler.running, self.scheduler.waiting), events)
            return None
        phase, num_rows, num_tokens = schedule.phase, schedule.num_rows, schedule.num_tokens
        num_decoding, num_prefill = schedule.num_decode_tokens, schedule.num_prefill_tokens
        if num_prefill and not (schedule.has_prefill or schedule.sources):
            # A prompt that lacks only its last token is computed like a decoding row, and costs as much.
            num_decoding, num_prefill = num_decoding + num_prefill, 0
        groups = schedule.groups
        events.computes(groups, started)
        mask_wait_seconds = None
        try:
            if launched is None:
                launched = self._ahead.launch(schedule)
            if launched is None:
                mask_wait_seconds = self._run(schedule, events)
            else:
                self._read(launched, events)
        except Exception as error:
            self._ahead.drop()
            for group in groups:
                self.finish(group, "engine_error", events, STEP_FAILED)
            raise StepFailed from error
        seconds = time.monotonic() - started
        host = self.scheduler.blocks.host
        copying = 0.0 if host is None else host.take_seconds()
        drafting = 0.0 if self._drafting is None else self._drafting.seconds
        self.scheduler.prefill_budget.observe(num_decoding, num_prefill, seconds - copying - drafting)
        self._finished_groups.align(chain(self.scheduler.running, self.scheduler.waiting), events)
        return StepTiming(
            self.name,
            phase,
            seconds,
            num_rows,
            num_tokens,
            mask_wait_seconds=mask_wait_seconds,
            beam_lag_tokens=self.new_tokens.take_beam_lags(),
        )

    def _run(self, schedule: Schedule, events: EngineEvents) -> float | None:
        """Compute a scheduled step and record its events.

        Returns the seconds spent waiting for grammar masks after the forward pass; None if no group has a grammar.
        """
        blocks_to_clear = self.scheduler.blocks.take_blocks_to_clear()
        self.runner.clear(*blocks_to_clear)
        if self._drafting is not None:
            self._drafting.prepare(schedule, blocks_to_clear[0])
        ready = schedule.ready
        waits = self.grammar_waits if any(group.grammar_states for group in ready) else None
        started = time.monotonic()
        if waits is not None:
            waits.start(ready)
        model = self.runner.model
        request = None if schedule.scores_prompts else step_logits_request(ready, model.max_logits_rows)
        output, hidden = self.runner.run(schedule, request)
        if self._drafting is not None:
            self._drafting.keep_states(schedule, output, hidden)
        scored_groups, failed = score_prompts(schedule.rows, hidden, model) if hidden is not None else ([], [])
        self.scheduler.computed(schedule)
        events.prompts += [PromptScored(group.sequence_id, group.prompt_logprobs.packed()) for group in scored_groups]
        for group in failed:
            self.finish(group, "engine_error", events, NOT_FINITE)
        mask_wait_seconds = None
        if waits is not None:
            if output.hidden.is_cuda:
                torch.cuda.synchronize(output.hidden.device)
            computed = time.monotonic()
            late = waits.late(ready, computed - started)
            mask_wait_seconds = time.monotonic() - computed
            output, ready = self._hold(waits, late, output, ready, events)
        self._choose(output, ready, events)
        return mask_wait_seconds

    def _read(self, step: LaunchedStep, events: EngineEvents) -> None:
        """Read the results of a launched step, and record its events.

        Each group without beams has one sequence, which gets one token, and neither a draft nor log-probabilities to
        report. A row of a long step costs no call of a function.
        """
        tokens, of_searches = self._ahead.read(step)
        self.scheduler.computed(step.schedule)
        now = time.monotonic()
        running = [
            (row.group, row.sequence, token)
            for row, token in zip(step.schedule.rows, tokens, strict=True)
            if row.group.beams is None and row.group.status is not SequenceStatus.FINISHED
        ]
        finite = [found for found in running if found[2] >= 0]
        for group, _, token in running if len(finite) < len(running) else ():
            if token < 0:
                self.finish(group, "engine_error", events, NOT_FINITE)
        self.scheduler.blocks.publish_each([group for group, _, _ in finite])
        events.tokens += [
            Tokens(group.sequence_id, [token], None, group.cached_tokens or 0) for group, _, token in finite
        ]
        for group, sequence, token in finite:
            if group.first_token is None:
                group.first_token = now
            sequence.tokens += (token,)
            if token in group.end_ids:
                self.finish(group, "stop", events)
            elif sequence.num_computed_tokens + 1 - group.num_prompt_tokens >= group.max_new_tokens:
                self.finish(group, "length", events)
            elif self.limits.restart_tokens is not None:
                self.new_tokens.restart_if_outgrown(group)
        self._record(of_searches, events)
        self._ahead.leave_lanes()

    def _choose(self, output: DecoderOutput, ready: list[SequenceGroup], events: EngineEvents) -> None:
        """Choose the next tokens of groups, and record their events.

        output: decoder output for the rows of these groups.
        ready: groups whose last tokens were computed.
        """
        if not ready:
            return
        self._fail_without_grammar_token(ready, events)
        self._record(select(output, self.runner.model, ready), events)

    def _record(self, selections: Sequence[Selection], events: EngineEvents) -> None:
        """Give the chosen tokens to their groups, end groups, and record the events."""
        now = time.monotonic()
        for selection in selections:
            if selection.group.status is not SequenceStatus.FINISHED:
                reason = self.new_tokens.give(selection, events, now)
                if reason is not None:
                    self.finish(selection.group, reason, events, NOT_FINITE if reason == "engine_error" else "")

    # -------------------------------------------------------------------------------------------------- grammars

    def _hold(
        self,
        waits: GrammarWaits,
        late: list[SequenceGroup],
        output: DecoderOutput,
        ready: list[SequenceGroup],
        events: EngineEvents,
    ) -> tuple[DecoderOutput, list[SequenceGroup]]:
        """Hold the groups whose grammar masks are not done. Groups with non-finite logits end with an error.

        late: groups without masks. output: decoder output of the step. ready: groups that get a token in the step.
        Returns the output and the groups without those in `late`.
        """
        if not late:
            return output, ready
        for group in late:
            if group.status is SequenceStatus.FINISHED:
                continue
            own = output_of(output, self.runner.model, ready, group)
            assert own.top_k is not None
            if not bool(own.top_k.is_finite.all()):
                self.finish(group, "engine_error", events, NOT_FINITE)
                continue
            # Other groups with the same prefix must not wait for the first token of this group.
            self.scheduler.blocks.publish(group)
            waits.hold(group, own)
        rest = [group for group in ready if group not in late]
        return output_without(output, ready, late) if rest else output, rest

    def _continue_held(self, waits: GrammarWaits, events: EngineEvents) -> None:
        """Choose the tokens of held groups whose masks are done. End groups whose grammar takes too long."""
        for group in waits.overdue():
            self.finish(group, "invalid_format", events, TOO_SLOW)
        for group, output in waits.take_ready():
            try:
                self._choose(output, [group], events)
            except Exception as error:
                self.finish(group, "engine_error", events, STEP_FAILED)
                raise StepFailed from error

    def _fail_without_grammar_token(self, ready: list[SequenceGroup], events: EngineEvents) -> None:
        """End the sequence groups whose grammar allows no next token, or whose masks could not be computed.

        A beam search that already has a finished hypothesis goes on.
        ready: groups that would get a token in this step.
        """
        for group in [group for group in ready if group.grammar_states]:
            if self.grammar_waits is not None and self.grammar_waits.error_of(group) is not None:
                self.finish(group, "engine_error", events, STEP_FAILED)
            finished = group.beams is not None and bool(group.beams.finished)
            failures = [grammar_state.failure for grammar_state in group.grammar_states]
            if all(failures) and not finished:
                self.finish(group, "invalid_format", events, failures[0])

    # ------------------------------------------------------------------------------------------- end of a group

    def finish(
        self,
        group: SequenceGroup,
        reason: FinishReason | Literal["abort", "engine_error", "invalid_format"],
        events: EngineEvents,
        message: str = "",
    ) -> None:
        """End a group and free its blocks. All groups end with this call; a second call for a group does nothing.

        reason: `abort` records no event; `engine_error` and `invalid_format` record a failure with `message`. A
            `timeout` before the first token records a failure. All other reasons record the result.
        """
        if group.status is SequenceStatus.FINISHED:
            if reason == "abort":
                self._finished_groups.drop(group)
            return
        source_blocks = group.cross_block_table
        if self._drafting is not None:
            self._drafting.forget(group, is_useful=reason in ("stop", "length"))
        self.scheduler.remove(group, corrupt=reason == "engine_error")
        if self.grammar_waits is not None:
            self.grammar_waits.forget(group)
        if reason == "abort":
            return
        if reason == "engine_error" or reason == "invalid_format":
            events.failed.append(Failed(group.sequence_id, reason, message))
        elif reason == "timeout" and group.first_token is None:
            events.failed.append(Failed(group.sequence_id, "timeout", TIMED_OUT))
        else:
            self._finished_groups.add(group, reason, source_blocks, events)
