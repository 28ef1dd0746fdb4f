"""Captured steps of the fake model whose cache stores tokens (`tests/engine/cached_text_model.py`).

A launched step is computed at once, as a device computes its steps in order. Its results are given to the engine when
they are read. For beams, the slots of each row's text are kept, as on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from models.backends.choice import backend
from models.backends.logits import LogitsRequest
from models.backends.torch.backend import TORCH
from models.backends.torch.beams import Beams, SearchResults
from models.backends.torch.sampling import Filters
from server.engine.device.captured_searches import searches_of
from server.engine.device.captured_steps import RowChoices
from server.engine.scheduling.schedule import ScheduledRow
from tests.engine.cached_text_model import VOCAB, CachedTextRunner

DEVICE_FILTERS = ("temperature", "top_k", "top_p", "min_p")
"""Filters that captured steps implement. `test_ahead_fields` compares them with the code for the device."""


def device_filters(row: Filters) -> Filters:
    """The settings of a row as a device applies them: without the filters that captured steps do not have."""
    return Filters(**{name: getattr(row, name) for name in DEVICE_FILTERS})


class LaunchedTokens:
    """Tokens of a launched step. log: gets an entry when they are read."""

    draft_states = None

    def __init__(self, tokens: list[int], log: list[str]) -> None:
        self._tokens, self._log = tokens, log

    def read(self) -> list[int]:
        self._log.append("read")
        return self._tokens


class CapturedTexts:
    """Captured steps of the fake model, in place of `CapturedSteps`. log: launches and reads in their order."""

    def __init__(self, runner: CachedTextRunner) -> None:
        self.runner = runner
        self.log: list[str] = []
        self._chosen: list[int] = []

    def run(self, rows: Sequence[ScheduledRow], logits: LogitsRequest) -> None:
        """Return None, for no captured step: steps whose results are read at once are computed by the runner."""

    def launch(
        self, rows: Sequence[ScheduledRow], choices: RowChoices, after: Sequence[ScheduledRow] | None = None
    ) -> LaunchedTokens | None:
        if any(row.num_tokens != 1 or row.sequence.draft or not row.needs_logits for row in rows):
            return None
        assert self.log.count("launch") - self.log.count("read") <= 1, "more than two steps are under way"
        self.log.append("launch")
        runner, found = self.runner, []
        for row in rows:
            sequence, position = row.sequence, row.sequence.num_computed_tokens + (after is not None)
            place = None if after is None else [scheduled.sequence for scheduled in after].index(sequence)
            token = sequence.tokens[position] if place is None else self._chosen[place]
            is_broken = row.group.sequence_id in runner.broken
            runner.cache[runner.slot(sequence.block_table, position)] = None if is_broken else token
            text = [runner.cache.get(runner.slot(sequence.block_table, at)) for at in range(position + 1)]
            found.append(runner.logits_of(row.group, text))
        logits = torch.stack(found)
        tokens = chosen_tokens(logits, choices)
        self._chosen = tokens.tolist()
        return LaunchedTokens(torch.where(logits.isfinite().all(-1), tokens, -1).tolist(), self.log)


def chosen_tokens(logits: torch.Tensor, choices: RowChoices) -> torch.Tensor:
    tokens, sampled = logits.argmax(-1), [i for i, choice in enumerate(choices.filters) if choice.temperature > 0]
    if sampled:
        filters, uniforms = [device_filters(choices.filters[i]) for i in sampled], choices.uniforms[sampled]
        own = logits[sampled].nan_to_num()
        tokens[sampled] = backend(own).draw(own, filters, uniforms).tokens
    return tokens


class LaunchedSearches(LaunchedTokens):
    """Results of a launched step with beam searches."""

    def __init__(self, tokens: list[int], results: torch.Tensor, log: list[str]) -> None:
        super().__init__(tokens, log)
        self._results = results

    def read_searches(self) -> SearchResults:
        return SearchResults.of(self._results.numpy())


class CapturedSearchTexts:
    """Captured steps with beam searches of the fake model, in place of `CapturedSearches`.

    slots: for each row of the last step, the slots of its text.
    num_later: number of steps that were launched before the last one was read.
    """

    def __init__(self, captured: CapturedTexts) -> None:
        self.runner, self.log = captured.runner, captured.log
        self.slots: list[list[int]] = []
        self.num_later = 0
        self._beams: Beams | None = None

    def launch(
        self,
        rows: Sequence[ScheduledRow],
        choices: RowChoices,
        find_candidates: Callable[..., tuple[torch.Tensor, torch.Tensor]],
        after: Sequence[ScheduledRow] | None = None,
    ) -> LaunchedSearches | None:
        if any(row.num_tokens != 1 or row.sequence.draft or not row.needs_logits for row in rows if after is None):
            return None
        runner, groups = self.runner, list(dict.fromkeys(row.group for row in rows))
        searches = searches_of(groups)
        count = max(searches.num_candidates)
        if count > VOCAB:
            return None
        assert self.log.count("launch") - self.log.count("read") <= 1, "more than two steps are under way"
        self.log.append("launch")
        self.num_later += after is not None
        lanes = [scheduled.sequence for scheduled in after or ()]
        texts, slots_of_rows, scores = [], [], []
        for row in rows:
            sequence, position = row.sequence, row.sequence.num_computed_tokens + (after is not None)
            if after is None:
                slots = [runner.slot(sequence.block_table, at) for at in range(position)]
                token = sequence.tokens[position]
                search = row.group.beams
                scores.append(
                    0.0 if search is None else search.running_beams.scores[row.group.sequences.index(sequence)]
                )
            else:
                place = lanes.index(sequence)
                slots = self.slots[int(self._beams.parents[place])]
                token = int(self._beams.tokens[place])
                scores.append(float(self._beams.scores[place]))
            slots_of_rows.append([*slots, runner.slot(sequence.block_table, position)])
            runner.cache[slots_of_rows[-1][-1]] = None if row.group.sequence_id in runner.broken else token
        self.slots = slots_of_rows
        for row, slots in zip(rows, self.slots, strict=True):
            texts.append(runner.logits_of(row.group, [runner.cache.get(slot) for slot in slots]))
        logits = torch.stack(texts)
        tokens, is_finite = chosen_tokens(logits, choices), logits.isfinite().all(-1)
        top_k = backend(logits).logits_top_k(logits, count, True)
        found = find_candidates(logits, top_k, groups, int(after is not None))
        self._beams = Beams(tokens, torch.arange(len(rows)), torch.zeros(len(rows)))
        columns = torch.from_numpy(searches.columns())
        results = TORCH.choose_beams(*found, is_finite, torch.tensor(scores), columns, count, self._beams)
        return LaunchedSearches(torch.where(is_finite, tokens, -1).tolist(), results, self.log)


def capture(runner: CachedTextRunner) -> None:
    """Let a runner launch steps ahead, with and without beams."""
    runner.captured = CapturedTexts(runner)
    runner.captured_searches = CapturedSearchTexts(runner.captured)
