"""Launches decode steps before the host has read the tokens of the previous step.

The device then computes a step while the host reads the tokens of the previous step, ends sequences and sends events.
This needs captured steps (`CapturedSteps`), which choose tokens on the device, greedily or by sampling. No row of the
step may have a setting that needs the host to read the text (`server.engine.sequences.ahead_fields`).

Until its tokens are read, a launched step counts as scheduled but not computed. The step after it is planned without
knowing the tokens: each row gets one. If a sequence ends with the unread token, the next step computes it in vain. The
block that this step writes stays in use until the step is over.
See docs/decisions/0097-steps-ahead.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from server.engine.choosing.sampler import SamplerRow, uniform
from server.engine.device.captured_steps import CapturedSteps, RowChoices
from server.engine.device.runner import Runner
from server.engine.scheduling.schedule import Schedule, ScheduledRow
from server.engine.scheduling.scheduler import Scheduler
from server.engine.sequences.sequence import SequenceStatus

if TYPE_CHECKING:
    from models.backends.cuda.graphs.step_graphs import ChosenTokens


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step that was launched and whose tokens are not read yet.

    tokens: reads the chosen token of each row.
    held: the block that each row writes. Each has one more owner until the step is over.
    """

    schedule: Schedule
    tokens: ChosenTokens
    held: list[int]


class StepsAhead:
    """Launches and reads the steps of one model ahead of time.

    next: the launched step whose tokens are read next; None if no step is launched.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self._scheduler, self._runner = scheduler, runner
        self.next: LaunchedStep | None = None

    def launch(self, schedule: Schedule) -> LaunchedStep | None:
        """Launch a step of the scheduler. Returns None if it cannot be launched and must be computed as usual."""
        captured = self._runner.captured
        if captured is None or schedule.sources or schedule.copies:
            return None
        if not all(group.runs_ahead and not group.has_prompt_to_score for group in schedule.groups):
            return None
        return self._launch(captured, schedule, None)

    def take(self) -> LaunchedStep | None:
        """Remove and return the launched step, whose tokens the caller must read; None if no step is launched."""
        step, self.next = self.next, None
        return step

    def read(self, step: LaunchedStep) -> list[int]:
        """Launch the step after `step`, if possible, and then wait for the tokens of `step`.

        Returns the token of each row; -1 if a logit of the row is not finite.
        """
        tokens: list[int] = []
        try:
            self.next = self._after(step)
            tokens = step.tokens.read()
        finally:
            self._release(step, is_finite=bool(tokens) and min(tokens) >= 0)
        return tokens

    def drop(self) -> None:
        """Forget the launched step after an error in the step before it. The sequences of that step fail."""
        if self.next is not None:
            self._release(self.next, is_finite=False)
            self.next = None

    def _release(self, step: LaunchedStep, is_finite: bool) -> None:
        self._scheduler.blocks.release_held(step.held, is_finite)

    def _after(self, step: LaunchedStep) -> LaunchedStep | None:
        """Launch the step after `step`, whose tokens are not read yet.

        Returns None if the next step cannot be planned without these tokens: if a waiting group can start, a sequence
        outside of `step` is running, all rows end by length, or blocks are lacking. Also if no captured step fits.
        """
        scheduler, captured = self._scheduler, self._runner.captured
        assert captured is not None, "a step was launched"
        running = [row for row in step.schedule.rows if row.group.status is SequenceStatus.RUNNING]
        rows = [row for row in running if row.group.num_generated + 1 < row.group.max_new_tokens]
        if not rows or len(running) != len(scheduler.running) or scheduler.can_admit:
            return None
        if not scheduler.blocks.extend_each([row.sequence for row in rows]):
            return None
        # Each row of a launched step computes one token, and so does its next one.
        schedule = Schedule(chunks=rows, num_row_tokens=len(rows), num_decode_tokens=len(rows))
        return self._launch(captured, schedule, step.schedule.rows)

    def _launch(
        self, captured: CapturedSteps, schedule: Schedule, after: Sequence[ScheduledRow] | None
    ) -> LaunchedStep | None:
        """Launch a step whose blocks are allocated. Returns None if no captured step fits its rows.

        after: rows of the previous launched step if the host has not read its tokens yet, else None.
        """
        blocks, rows = self._scheduler.blocks, schedule.rows
        self._runner.clear(*blocks.take_blocks_to_clear())
        tokens = captured.launch(rows, _choices(rows, after is not None), after)
        if tokens is None:
            return None
        positions = [row.sequence.num_computed_tokens + (after is not None) for row in rows]
        held = blocks.hold([row.sequence for row in rows], positions)
        return LaunchedStep(schedule, tokens, held)


def _choices(rows: Sequence[ScheduledRow], ahead: bool) -> RowChoices:
    """Sampling settings and random numbers for the next token of each row.

    ahead: whether each row has one more token that the host has not read yet.
    """
    groups = [row.group for row in rows]
    filters = [SamplerRow.of(group.params, group.seed, group.num_generated + ahead) for group in groups]
    sampled = [place for place, choice in enumerate(filters) if not choice.is_greedy]
    uniforms = np.zeros(len(groups))
    if sampled:
        own = [filters[place] for place in sampled]
        uniforms[sampled] = uniform([choice.seed for choice in own], [choice.position for choice in own])
    return RowChoices(filters, uniforms)
