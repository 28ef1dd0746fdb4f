"""Calls the drafter of one model around its steps. An error of the drafter ends drafts, and never a request."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import Tensor

from models.backends.logits import DecoderOutput
from server.engine.drafting.drafts import Drafter
from server.engine.drafting.head_drafter import HeadDrafter
from server.engine.scheduling.schedule import Schedule, ScheduledRow
from server.engine.scheduling.step_costs import StepCosts
from server.engine.sequences.sequence import SequenceGroup

log = logging.getLogger("triptych.engine")


class Drafting:
    """Calls the drafter of a model, and a draft head also before and after each step.

    A failed drafter is not called again.
    name: name of the model, for the log. drafter: proposes draft tokens.
    """

    def __init__(self, name: str, drafter: Drafter) -> None:
        self._name, self.drafter = name, drafter
        self._head = drafter if isinstance(drafter, HeadDrafter) else None

    @property
    def costs(self) -> StepCosts | None:
        """Durations of decode-only steps that the drafter uses; None if it uses no durations."""
        return self.drafter.costs

    @property
    def seconds(self) -> float:
        """Duration of the passes of a draft head in the current step. They are no part of the model's step time."""
        return 0.0 if self._head is None else self._head.seconds

    def learn_costs_again(self) -> None:
        """Forget the durations of all steps and passes so far."""
        if self.drafter.costs is not None:
            self.drafter.costs.clear()
        if self._head is not None:
            self._head.head_costs.clear()

    def propose(self, running: Sequence[SequenceGroup]) -> None:
        """Draft tokens for the groups that decode in the next step. If drafting fails, they decode without drafts."""
        decoding = [group for group in running if group.is_ready_to_decode]
        ready = [group for group in decoding if group.accepts_drafts]
        try:
            self.drafter.propose(ready, sum(len(group.sequences) for group in decoding))
        except Exception:
            self._stop(ready)
            for group in ready:
                group.sequences[0].draft = []

    def prepare(self, schedule: Schedule, cleared_blocks: Sequence[int]) -> None:
        """Let a draft head compute the drafts of a step. Does nothing for other drafters.

        If it fails, later steps have no drafts. The drafts of this step keep their length, because blocks were
        allocated for them, and are verified.
        cleared_blocks: blocks that were cleared in the cache of the model.
        """
        if self._head is None:
            return
        self.clear(cleared_blocks, schedule.groups)
        try:
            self._head.complete(schedule)
            schedule.keeps_hidden = self._head.needs_all_states(schedule)
        except Exception:
            self._stop(schedule.groups)

    def keep_states(self, schedule: Schedule, output: DecoderOutput, hidden: Tensor | None) -> None:
        """Give a draft head the hidden states of a step, if the hidden states of all tokens are known.

        output: output of the step. hidden: final hidden states of all tokens; None if the step has the hidden states of
            its output rows only.
        """
        if self._head is None:
            return
        states = output.draft_states
        if states is None and not self._head.head.config.target_layers:
            states = output.hidden if hidden is None else hidden
        if states is None or states.shape[0] != schedule.num_row_tokens:
            return
        try:
            starts = [row.sequence.num_computed_tokens for row in schedule.rows]
            self._head.observe(schedule.rows, starts, states)
        except Exception:
            self._stop(schedule.groups)

    def waits_for_tokens(self, rows: Sequence[ScheduledRow]) -> bool:
        """Whether the host must have read all tokens of some decoding rows before their next step may start.

        True if the step may verify drafts, or if a draft head may have to run before the step.
        rows: one row per group, except that groups with beams have several.
        """
        ready = [row.group for row in rows if row.group.accepts_drafts]
        try:
            return self.drafter.waits_for_tokens(ready, len(rows))
        except Exception:
            self._stop(ready)
            return True

    def launched(self, rows: Sequence[ScheduledRow], starts: Sequence[int], states: Tensor | None) -> None:
        """Give a draft head the hidden states of a step without drafts whose tokens are not read yet.

        rows: rows of the step, one token each. starts: position of this token. states: `DecoderOutput.draft_states`.
        """
        if self._head is None:
            return
        self._head.skip_step()
        if states is None:
            return
        try:
            self._head.observe(rows, starts, states)
        except Exception:
            self._stop([row.group for row in rows])

    def clear(self, cleared_blocks: Sequence[int], groups: Sequence[SequenceGroup]) -> None:
        """Clear blocks in the cache of a draft head. If this fails, these groups draft no longer.

        cleared_blocks: blocks that were cleared in the cache of the model. groups: groups of the next step.
        """
        if self._head is None or not cleared_blocks:
            return
        try:
            self._head.clear(cleared_blocks)
        except Exception:
            self._stop(groups)

    def forget(self, group: SequenceGroup, is_useful: bool) -> None:
        """Drop the data of a group that ends. Its blocks are still allocated.

        is_useful: whether other groups may find its blocks in the prefix cache.
        """
        if self._head is not None and is_useful:
            try:
                self._head.finish(group)
            except Exception:
                self._stop([group])
        self.drafter.forget(group)

    def give_back(self) -> None:
        """Return the memory of the drafter's caches to the system. No block may be in use."""
        if self.drafter.pool is not None and self.drafter.runner is not None:
            assert not self.drafter.pool.used_blocks, "a model without sequences uses no blocks"
            self.drafter.pool.forget_all()
            self.drafter.runner.give_back_caches()
        if self._head is not None:
            self._head.give_back()

    def _stop(self, groups: Sequence[SequenceGroup]) -> None:
        """Log the exception that is being handled, and stop drafting for these groups."""
        log.exception("drafting for %s failed; these requests continue without drafts", self._name)
        for group in groups:
            group.accepts_drafts = False
            self.drafter.forget(group)
