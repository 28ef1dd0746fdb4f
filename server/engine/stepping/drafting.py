"""Calls the drafter of one model around its steps. An error of the drafter ends drafts, and never a request."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import Tensor

from models.backends.logits import DecoderOutput
from server.engine.drafting.drafts import Drafter
from server.engine.drafting.head_drafter import HeadDrafter
from server.engine.scheduling.schedule import Schedule
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
        try:
            self._head.clear(cleared_blocks)
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
        states: Tensor | None = output.hidden if hidden is None else hidden
        if self._head.head.config.target_layers:
            states = self._head.head.target.taps
        if states is None or states.shape[0] != schedule.num_row_tokens:
            return
        try:
            self._head.observe(schedule, states)
        except Exception:
            self._stop(schedule.groups)

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
