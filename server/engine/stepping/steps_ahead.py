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

from models.backends.torch.sampling import Filters
from server.engine.choosing.sampler import SamplerRow, uniform
from server.engine.device.captured_steps import CapturedSteps, RowChoices
from server.engine.device.runner import Runner
from server.engine.scheduling.schedule import Schedule, ScheduledRow
from server.engine.scheduling.scheduler import Scheduler
from server.engine.sequences.sequence import SequenceGroup, SequenceStatus

if TYPE_CHECKING:
    from models.backends.cuda.graphs.step_graphs import ChosenTokens


@dataclass(frozen=True, slots=True)
class RowSettings:
    """Sampling settings of the rows of a step, which do not change while the rows stay the same.

    filters: settings of each row. sampled: indices of the rows that are sampled. seeds: the seed of each sampled row.
    """

    filters: tuple[Filters, ...]
    sampled: list[int]
    seeds: list[int]

    @classmethod
    def of(cls, groups: Sequence[SequenceGroup]) -> RowSettings:
        filters = tuple(SamplerRow.of(group.params, group.seed, 0) for group in groups)
        sampled = [place for place, row in enumerate(filters) if not row.is_greedy]
        return cls(filters, sampled, [groups[place].seed for place in sampled])

    def choices(self, positions: Sequence[int]) -> RowChoices:
        """How the tokens of a step are chosen. positions: number of new tokens of each row before this one."""
        uniforms = np.zeros(len(self.filters))
        if self.sampled:
            uniforms[self.sampled] = uniform(self.seeds, [positions[place] for place in self.sampled])
        return RowChoices(self.filters, uniforms)


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step that was launched and whose tokens are not read yet.

    tokens: reads the chosen token of each row.
    settings: sampling settings of each row. The next step of the same rows has the same object.
    held: the block that each row writes. Each has one more owner until the step is over.
    """

    schedule: Schedule
    tokens: ChosenTokens
    settings: RowSettings
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
        settings = RowSettings.of([row.group for row in schedule.rows])
        return self._launch(captured, schedule, settings, None)

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
        # The tokens of `step` are not read and not counted as computed, except for the one that each row computes.
        rows = [
            row
            for row in running
            if row.sequence.num_computed_tokens + 2 - row.group.num_prompt_tokens < row.group.max_new_tokens
        ]
        if not rows or len(running) != len(scheduler.running) or scheduler.can_admit:
            return None
        if not scheduler.blocks.extend_each([row.sequence for row in rows]):
            return None
        # Each row of a launched step computes one token, and so does its next one.
        schedule = Schedule(chunks=rows, num_row_tokens=len(rows), num_decode_tokens=len(rows))
        settings = step.settings
        if len(rows) < len(step.schedule.rows):
            settings = RowSettings.of([row.group for row in rows])
        return self._launch(captured, schedule, settings, step.schedule.rows)

    def _launch(
        self,
        captured: CapturedSteps,
        schedule: Schedule,
        settings: RowSettings,
        after: Sequence[ScheduledRow] | None,
    ) -> LaunchedStep | None:
        """Launch a step whose blocks are allocated. Returns None if no captured step fits its rows.

        settings: sampling settings of the rows.
        after: rows of the previous launched step if the host has not read its tokens yet, else None.
        """
        blocks, rows = self._scheduler.blocks, schedule.rows
        self._runner.clear(*blocks.take_blocks_to_clear())
        tokens = captured.launch(rows, settings.choices(_num_new_tokens(rows, after is not None)), after)
        if tokens is None:
            return None
        positions = [row.sequence.num_computed_tokens + (after is not None) for row in rows]
        held = blocks.hold([row.sequence for row in rows], positions)
        return LaunchedStep(schedule, tokens, settings, held)


def _num_new_tokens(rows: Sequence[ScheduledRow], ahead: bool) -> list[int]:
    """Number of new tokens of each row before the one that the step chooses.

    ahead: whether each row has one more token that the host has not read yet.
    """
    if not ahead:
        return [row.group.num_generated for row in rows]
    # The last known token of each sequence is being computed, and the one after it is not read.
    return [row.sequence.num_computed_tokens + 2 - row.group.num_prompt_tokens for row in rows]
