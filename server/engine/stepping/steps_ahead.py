"""Launches decode steps before the host has read the results of the previous step.

The device then computes a step while the host reads the results of the previous step, ends sequences and sends events.
This needs captured steps (`CapturedSteps`, and `CapturedSearches` for beams), which choose tokens and beams on the
device. No row of the step may have a setting that needs the host to read the text
(`server.engine.sequences.ahead_fields`), and the drafter of the model must have nothing to do for the step.

Until its results are read, a launched step counts as scheduled but not computed. The step after it is planned without
knowing them: each row gets one token. If a sequence ends with the unread token, its result of the next step
is dropped. The block that this step writes stays in use until the step is over.

While steps with beams are launched one after the other, each sequence of a search is a lane (`BeamLanes`). When no
further step is launched, the beams get block tables of their own again, because only these steps know lanes.
See docs/decisions/0097-steps-ahead.md and docs/decisions/0183-beams-on-the-device.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from models.backends.torch.sampling import Filters
from server.engine.choosing.candidates import find_candidates
from server.engine.choosing.read_searches import selections_of_searches
from server.engine.choosing.sampler import SamplerRow, uniform
from server.engine.choosing.selection import Selection
from server.engine.device.captured_steps import RowChoices, is_single
from server.engine.device.runner import Runner
from server.engine.scheduling.schedule import Schedule, ScheduledRow
from server.engine.scheduling.scheduler import Scheduler
from server.engine.sequences.sequence import SequenceGroup, SequenceStatus
from server.engine.stepping.drafting import Drafting

if TYPE_CHECKING:
    from models.backends.cuda.graphs.beam_graphs import ChosenBeams
    from models.backends.cuda.graphs.step_graphs import ChosenTokens

_GREEDY = SamplerRow()


@dataclass(frozen=True, slots=True)
class RowSettings:
    """Sampling settings of the rows of a step. They do not change while the rows stay the same.

    Rows of beams ignore them.
    filters: settings of each row. sampled: indices of the rows that are sampled. seeds: the seed of each sampled row.
    """

    filters: tuple[Filters, ...]
    sampled: list[int]
    seeds: list[int]

    @classmethod
    def of(cls, groups: Sequence[SequenceGroup]) -> RowSettings:
        filters = tuple(
            SamplerRow.of(group.params, group.seed, 0) if group.beams is None else _GREEDY for group in groups
        )
        sampled = [place for place, row in enumerate(filters) if not row.is_greedy]
        return cls(filters, sampled, [groups[place].seed for place in sampled])

    def choices(self, positions: Sequence[int]) -> RowChoices:
        """The sampling settings of the rows, and a random number for the next token of each row.

        positions: for each row, the number of tokens that are generated before this step.
        """
        uniforms = np.zeros(len(self.filters))
        if self.sampled:
            uniforms[self.sampled] = uniform(self.seeds, [positions[place] for place in self.sampled])
        return RowChoices(self.filters, uniforms)


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step that was launched and whose results are not read yet.

    tokens: reads the chosen token of each row.
    settings: sampling settings of each row. The next step of the same rows has the same object.
    held: the block that each row writes. Each has one more owner until the step is over.
    beams: reads the results of the beam searches; None for a step without beams.
    searches: the groups of these searches, in the order of their rows.
    """

    schedule: Schedule
    tokens: ChosenTokens
    settings: RowSettings
    held: list[int]
    beams: ChosenBeams | None = None
    searches: list[SequenceGroup] = field(default_factory=list)


class StepsAhead:
    """Launches and reads the steps of one model ahead of time.

    drafting: the drafter of the model; None without speculative decoding.
    next: the launched step whose results are read next; None if no step is launched.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, drafting: Drafting | None = None) -> None:
        self._scheduler, self._runner, self.drafting = scheduler, runner, drafting
        self.next: LaunchedStep | None = None

    def launch(self, schedule: Schedule) -> LaunchedStep | None:
        """Launch a step of the scheduler. Returns None if it cannot be launched and must be computed as usual."""
        if self._runner.captured is None or schedule.sources:
            return None
        groups = schedule.groups
        if not all(group.runs_ahead and not group.has_prompt_to_score for group in groups):
            return None
        rows = schedule.rows
        if self.drafting is not None and (not all(map(is_single, rows)) or self.drafting.waits_for_tokens(rows)):
            return None
        settings = RowSettings.of([row.group for row in rows])
        searches = [group for group in groups if group.beams is not None]
        if not searches and schedule.copies:
            return None
        captured = self._runner.captured_searches
        # The first token of a search comes from a single sequence.
        if searches and (captured is None or not all(len(group.sequences) > 1 for group in searches)):
            return None
        return self._launch(schedule, settings, None)

    def take(self) -> LaunchedStep | None:
        """Remove and return the launched step, whose results the caller must read; None if no step is launched."""
        step, self.next = self.next, None
        return step

    def read(self, step: LaunchedStep) -> tuple[list[int], list[Selection]]:
        """Launch the step after `step`, if possible, and then wait for the results of `step`.

        Returns:
        - the token of each row without beams; -1 if a logit of a row is not finite, with beams or without;
        - the selections of the groups with beams that have not ended. Their searches are advanced.
        """
        tokens: list[int] = []
        try:
            self.next = self._after(step)
            tokens = step.tokens.read()
        finally:
            self._release(step, is_finite=bool(tokens) and min(tokens) >= 0)
        if step.beams is None:
            return tokens, []
        return tokens, selections_of_searches(step.searches, step.beams.read_searches())

    def leave_lanes(self) -> None:
        """End the use of lanes (`BeamLanes`), unless the next step is launched.

        Each beam then has a block table with its own text.
        """
        if self.next is None:
            blocks = self._scheduler.blocks
            found = [blocks.leave_lanes(group) for group in self._scheduler.running if group.lanes is not None]
            self._runner.copy_slots([copies for copies in found if copies is not None])

    def drop(self) -> None:
        """Forget the launched step after an error in the step before it. The engine ends the failed step's groups."""
        if self.next is not None:
            self._release(self.next, is_finite=False)
            self.next = None

    def _release(self, step: LaunchedStep, is_finite: bool) -> None:
        self._scheduler.blocks.release_held(step.held, is_finite)

    def _after(self, step: LaunchedStep) -> LaunchedStep | None:
        """Launch the step after `step`, whose results are not read yet.

        Returns None if the next step cannot be planned without these results: if a waiting group can start, a sequence
        outside of `step` is running, all rows end by length, blocks are lacking, or the step may have drafts. Also if
        no captured step fits.
        """
        scheduler = self._scheduler
        running = [row for row in step.schedule.rows if row.group.status is SequenceStatus.RUNNING]
        num_groups = len(running) if step.beams is None else len({row.group for row in running})
        # The tokens of `step` are not read and not counted as computed, except for the one that each row computes.
        rows = [
            row
            for row in running
            if row.sequence.num_computed_tokens + 2 - row.group.num_prompt_tokens < row.group.max_new_tokens
        ]
        if not rows or num_groups != len(scheduler.running) or scheduler.can_admit:
            return None
        if step.beams is not None and all(row.group.beams is None for row in rows):
            return None
        if self.drafting is not None and self.drafting.waits_for_tokens(rows):
            return None
        if not scheduler.blocks.extend_each([row.sequence for row in rows]):
            return None
        # Each row of a launched step computes one token, and so does its next one.
        schedule = Schedule(chunks=rows, num_row_tokens=len(rows), num_decode_tokens=len(rows))
        settings = step.settings
        if len(rows) < len(step.schedule.rows):
            settings = RowSettings.of([row.group for row in rows])
        return self._launch(schedule, settings, step.schedule.rows)

    def _launch(
        self, schedule: Schedule, settings: RowSettings, after: Sequence[ScheduledRow] | None
    ) -> LaunchedStep | None:
        """Launch a step whose blocks are allocated. Returns None if no captured step fits its rows.

        settings: sampling settings of the rows.
        after: rows of the previous launched step if the host has not read its results yet, else None.
        """
        blocks, rows = self._scheduler.blocks, schedule.rows
        # A block may be cleared and then be the destination of a copy.
        cleared = blocks.take_blocks_to_clear()
        self._runner.clear(*cleared)
        if self.drafting is not None:
            self.drafting.clear(cleared[0], schedule.groups)
        self._runner.copy_blocks(schedule.copies)
        schedule.copies = []
        searches = list(dict.fromkeys(row.group for row in rows if row.group.beams is not None))
        choices, beams = settings.choices(_num_new_tokens(rows, after is not None)), None
        tokens: ChosenTokens | None
        if searches:
            assert self._runner.captured_searches is not None
            tokens = beams = self._runner.captured_searches.launch(rows, choices, find_candidates, after)
        else:
            assert self._runner.captured is not None
            tokens = self._runner.captured.launch(rows, choices, after)
        if tokens is None:
            return None
        if after is None:
            for group in searches:
                blocks.enter_lanes(group)
        positions = [row.sequence.num_computed_tokens + (after is not None) for row in rows]
        if self.drafting is not None:
            self.drafting.launched(rows, positions, tokens.draft_states)
        held = blocks.hold([row.sequence for row in rows], positions)
        return LaunchedStep(schedule, tokens, settings, held, beams, searches)


def _num_new_tokens(rows: Sequence[ScheduledRow], ahead: bool) -> list[int]:
    """For each row, the number of generated tokens before the token that the step chooses.

    ahead: whether each row has one more token that the host has not read yet.
    """
    if not ahead:
        return [row.group.num_generated for row in rows]
    # The last known token of each sequence is being computed, and the one after it is not read.
    return [row.sequence.num_computed_tokens + 2 - row.group.num_prompt_tokens for row in rows]
