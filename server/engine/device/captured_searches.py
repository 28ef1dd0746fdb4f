"""Runs decode steps with beam searches as CUDA graphs, and leaves the choice of the next beams to the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from models.backends.logits import LogitsTopK
from models.backends.torch.beams import StepSearches
from models.steps.batch import DecoderBatch
from server.engine.beams.running_beams import Float32s
from server.engine.device.captured_steps import RowChoices, is_single
from server.engine.device.decoder_batches import BatchBuilder, BatchRows
from server.engine.scheduling.schedule import ScheduledRow
from server.engine.sequences.sequence import SequenceGroup

if TYPE_CHECKING:
    from models.backends.cuda.graphs.beam_graphs import BeamGraphs, ChosenBeams

FindCandidates = Callable[[Tensor, LogitsTopK, Sequence[SequenceGroup], int], tuple[Tensor, Tensor]]
"""Type of the function `server.engine.choosing.candidates.find_candidates`."""


class CapturedSearches:
    """Runs the captured steps with beam searches of one model.

    block_size: block size of the KV cache.
    has_sources: whether the rows have a source in the cross-attention cache.
    """

    def __init__(self, graphs: BeamGraphs, block_size: int, has_sources: bool) -> None:
        self._graphs, self._block_size = graphs, block_size
        self._batches = BatchBuilder(torch.device("cpu"), block_size, has_sources, needs_rope_lengths=False)

    def launch(
        self,
        rows: Sequence[ScheduledRow],
        choices: RowChoices,
        find_candidates: FindCandidates,
        after: Sequence[ScheduledRow] | None = None,
    ) -> ChosenBeams | None:
        """Start a step whose beams and tokens are chosen on the device. Reads nothing on the host.

        rows: rows of the step. The rows of a group are consecutive, in the order of its sequences. The sequences of a
            beam search are its lanes (`BeamLanes`) from this step on, if they were not before.
        choices: how the tokens of rows without beams are chosen.
        find_candidates: finds the best continuations of each row on the device.
        after: rows of the previous launched step, if the host has not read its results yet. They include all of `rows`.
        Returns the results, to be read later; None, and starts nothing, if no captured step fits the rows.
        """
        if after is None and not all(map(is_single, rows)):
            return None
        groups = list(dict.fromkeys(row.group for row in rows))
        searches = searches_of(groups)
        if max(searches.num_candidates) > self._graphs.max_candidates:
            return None
        given = BatchRows.singles(groups, [row.sequence for row in rows])
        scores: Float32s | None = None
        if after is None:
            scores = np.concatenate([_scores_of(group) for group in groups])
        else:
            places = {row.sequence: -1 - place for place, row in enumerate(after)}
            token_ids = [places[sequence] for sequence in given.sequences]
            given = given._replace(starts=[start + 1 for start in given.starts], token_ids=token_ids)
        batch = self._batches.build(given)
        if batch.adapters or not self._graphs.takes(batch.query_lens, batch.key_lens, batch.source_lens):
            return None
        tables = batch.block_tables[:, :0] if after is not None else self._slots(batch)
        num_unread = int(after is not None)
        return self._graphs.launch_searches(
            replace(batch, block_tables=tables),
            choices.filters,
            choices.uniforms,
            searches,
            lambda logits, top_k: find_candidates(logits, top_k, groups, num_unread),
            scores,
        )

    def _slots(self, batch: DecoderBatch) -> Tensor:
        """Cache slot of each token of each row: [rows, longest row], int64."""
        slots = batch.block_tables[:, :, None] * self._block_size + torch.arange(self._block_size)
        return slots.flatten(1)[:, : max(batch.key_lens)].contiguous()


def searches_of(groups: Sequence[SequenceGroup]) -> StepSearches:
    """Describe the beam searches of a step for the device.

    groups: the groups of the rows, in order; at least one with beams.
    """
    first_rows, num_beams, num_candidates, end_ids = [], [], [], []
    row = 0
    for group in groups:
        if group.beams is not None:
            first_rows.append(row)
            num_beams.append(len(group.sequences))
            num_candidates.append(group.beams.num_candidates)
            end_ids.append(sorted(group.end_ids))
        row += len(group.sequences)
    return StepSearches(first_rows, num_beams, num_candidates, end_ids)


def _scores_of(group: SequenceGroup) -> Float32s:
    """For each beam of a group, the sum of its log-probabilities; 0 for a group without beams."""
    return np.zeros(1, dtype=np.float32) if group.beams is None else group.beams.running_beams.scores
