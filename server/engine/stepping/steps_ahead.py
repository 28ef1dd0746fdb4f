"""Decode steps that are launched before the tokens of the step before them are read.

The device then computes a step while the host reads the tokens of the last one, ends sequences and sends events. It
needs captured steps (`CapturedSteps`) that choose their tokens on the device: greedy or sampled, without anything that
reads the text so far on the host (`server.engine.sequences.ahead_fields`). Every row of the step must be like that,
because one schedule serves all of them.

Until its tokens are read, a launched step is like a scheduled one that is not computed yet. The step after it is
planned with the number of tokens alone: each row gets one. A sequence that ends with that token was computed once too
often; the block that the step writes for it stays in use until that step is over.
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
    """A step under way.

    tokens: the token of each row, to be read. held: the block that each row writes, with one more owner.
    """

    schedule: Schedule
    tokens: ChosenTokens
    held: list[int]


class StepsAhead:
    """The launched steps of one model.

    next: the launched step whose tokens are read next; None if no step is under way.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self._scheduler, self._runner = scheduler, runner
        self.next: LaunchedStep | None = None

    def launch(self, schedule: Schedule) -> LaunchedStep | None:
        """Launch a step of the scheduler. None where it must be computed and read at once."""
        captured = self._runner.captured
        if captured is None or schedule.sources or schedule.copies:
            return None
        if not all(group.runs_ahead and not group.has_prompt_to_score for group in schedule.groups):
            return None
        return self._launch(captured, schedule, None)

    def take(self) -> LaunchedStep | None:
        """The step under way, if any. The caller reads it."""
        step, self.next = self.next, None
        return step

    def read(self, step: LaunchedStep) -> list[int]:
        """Launch the next step, if possible, and then wait for the results of `step`.

        Returns the token of each row; -1 where a logit of the row is not finite.
        """
        tokens: list[int] = []
        try:
            self.next = self._after(step)
            tokens = step.tokens.read()
        finally:
            self._release(step, is_finite=bool(tokens) and min(tokens) >= 0)
        return tokens

    def drop(self) -> None:
        """Forget the step under way, after an error. Its sequences are also those of the step before it."""
        if self.next is not None:
            self._release(self.next, is_finite=False)
            self.next = None

    def _release(self, step: LaunchedStep, is_finite: bool) -> None:
        self._scheduler.blocks.release_held(step.held, is_finite)

    def _after(self, step: LaunchedStep) -> LaunchedStep | None:
        """Launch the step after `step`. None if its schedule needs the tokens of `step`, which are not read yet."""
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
        """Launch a step whose blocks are allocated. after: see `CapturedSteps.launch`."""
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

    ahead: whether each row has one more token, which the host has not read yet.
    """
    groups = [row.group for row in rows]
    filters = [SamplerRow.of(group.params, group.seed, group.num_generated + ahead) for group in groups]
    sampled = [place for place, choice in enumerate(filters) if not choice.is_greedy]
    uniforms = np.zeros(len(groups))
    if sampled:
        own = [filters[place] for place in sampled]
        uniforms[sampled] = uniform([choice.seed for choice in own], [choice.position for choice in own])
    return RowChoices(filters, uniforms)
