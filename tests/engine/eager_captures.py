"""Takes the place of captured steps where there is no device: launched steps are computed at once, eagerly."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from models.backends.logits import LogitsRequest
from server.engine.device.captured_steps import RowChoices, is_single
from server.engine.device.decoder_batches import BatchBuilder, BatchRows
from server.engine.device.runner import Runner
from server.engine.scheduling.schedule import Schedule, ScheduledRow
from tests.engine.captured_texts import chosen_tokens


class Launched:
    """A launched step. Implements what the engine needs of `ChosenTokens`."""

    def __init__(self, tokens: list[int], draft_states: Tensor) -> None:
        self._tokens, self.draft_states = tokens, draft_states

    def read(self) -> list[int]:
        return self._tokens


class EagerCaptures:
    """Steps of a decoder, in place of `CapturedSteps`.

    launches: for each launched step, the number of its rows, and whether the tokens before it were not read yet.
    """

    step_sizes: tuple[int, ...] = ()

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._batches = BatchBuilder(torch.device("cpu"), runner.self_cache.block_size, False, False)
        self._chosen: list[int] = []
        self.launches: list[tuple[int, bool]] = []

    def run(self, schedule: Schedule, logits: LogitsRequest | None) -> None:
        """No captured step: the runner computes steps whose results are read at once."""

    def launch(
        self, rows: Sequence[ScheduledRow], choices: RowChoices, after: Sequence[ScheduledRow] | None = None
    ) -> Launched | None:
        if after is None and not all(map(is_single, rows)):
            return None
        given = BatchRows.singles([row.group for row in rows], [row.sequence for row in rows])
        if after is not None:
            chosen = dict(zip([row.sequence for row in after], self._chosen, strict=True))
            token_ids = [chosen[sequence] for sequence in given.sequences]
            given = given._replace(starts=[start + 1 for start in given.starts], token_ids=token_ids)
        output = self._runner.model.decode(
            self._batches.build(given), self._runner.self_cache, None, LogitsRequest(), self._runner.state_memory
        )
        self._chosen = chosen_tokens(output.logits, choices).tolist()
        self.launches.append((len(rows), after is not None))
        return Launched(self._chosen, output.hidden.clone() if output.draft_states is None else output.draft_states)
