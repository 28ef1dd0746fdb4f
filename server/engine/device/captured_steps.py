"""Runs decoder steps of the scheduler as CUDA graphs, if a captured step fits their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from models.backends.logits import DecoderOutput, LogitsRequest
from models.backends.torch.sampling import Filters
from models.steps.batch import DecoderBatch
from server.engine.device.decoder_batches import BatchBuilder, BatchRows
from server.engine.scheduling.schedule import Schedule, ScheduledRow

if TYPE_CHECKING:
    from models.backends.cuda.graphs.mixed_graphs import MixedGraphs
    from models.backends.cuda.graphs.step_graphs import ChosenTokens, StepGraphs


class RowChoices(NamedTuple):
    """How the device chooses the token of each row.

    filters: settings of each row; a temperature of 0 chooses the largest logit.
    uniforms: [rows], float64: random number in [0, 1) of each row.
    """

    filters: Sequence[Filters]
    uniforms: NDArray[np.float64]


class CapturedSteps:
    """Runs the captured decoder steps of one model, which are CUDA graphs.

    graphs: decode steps. mixed: steps with prefill or drafts; None if these run eagerly.
    block_size: block size of the KV cache.
    has_sources: whether the rows have a source in the cross-attention cache.
    """

    def __init__(self, graphs: StepGraphs, mixed: MixedGraphs | None, block_size: int, has_sources: bool) -> None:
        self._graphs, self._mixed = graphs, mixed
        self._batches = BatchBuilder(torch.device("cpu"), block_size, has_sources, needs_rope_lengths=False)

    @property
    def step_sizes(self) -> tuple[int, ...]:
        """Numbers of tokens for which steps with prefill were captured, ascending.

        A step with fewer tokens takes as long as the next larger captured step.
        """
        return () if self._mixed is None else self._mixed.sizes

    def run(self, schedule: Schedule, logits: LogitsRequest | None) -> DecoderOutput | None:
        """Compute a step with a captured graph. Returns None, and computes nothing, if no captured step fits its rows.

        logits: the top-k to compute for each row, and whether log-sum-exp is needed; None for no logits, or if too many
            rows need them.
        """
        is_decode = schedule.is_plain and all(map(is_single, schedule.chunks))
        if self._mixed is None and not (is_decode and logits is not None):
            return None
        batch = self._batches.build(BatchRows.of(schedule))
        if is_decode:
            return self._graphs.run(batch, logits) if logits is not None and self._takes(batch) else None
        num_outputs = sum(batch.query_lens if batch.output_lens is None else batch.output_lens)
        if self._mixed is None or (num_outputs > 0 and logits is None) or not self._mixed.takes(batch, num_outputs):
            return None
        return self._mixed.run(batch, logits)

    def launch(
        self, rows: Sequence[ScheduledRow], choices: RowChoices, after: Sequence[ScheduledRow] | None = None
    ) -> ChosenTokens | None:
        """Start a step whose tokens are chosen on the device. Reads nothing on the host.

        rows: at most one of each group.
        choices: how the token of each row is chosen.
        after: rows of the previous launched step, if the host has not read its tokens yet. They include all of `rows`.
        Returns the chosen tokens, to be read later; None, and starts nothing, if no captured step fits the rows.
        """
        if after is None and not all(map(is_single, rows)):
            return None
        given = BatchRows.singles([row.group for row in rows], [row.sequence for row in rows])
        if after is not None:
            places = {row.sequence: -1 - place for place, row in enumerate(after)}
            token_ids = [places[sequence] for sequence in given.sequences]
            given = given._replace(starts=[start + 1 for start in given.starts], token_ids=token_ids)
        batch = self._batches.build(given)
        return self._graphs.launch(batch, choices.filters, choices.uniforms) if self._takes(batch) else None

    def _takes(self, batch: DecoderBatch) -> bool:
        return not batch.adapters and self._graphs.takes(batch.query_lens, batch.key_lens, batch.source_lens)


def is_single(row: ScheduledRow) -> bool:
    """Whether a row computes only the last token of its sequence, without a draft."""
    return row.num_tokens == 1 and not row.sequence.draft and row.needs_logits
