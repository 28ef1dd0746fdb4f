"""Runs decode steps of the scheduler as CUDA graphs, where a captured step computes their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from models.backends.torch.sampling import Filters
from models.batch import DecoderBatch
from models.logits import DecoderOutput, LogitsRequest
from server.engine.scheduler import ScheduledRow
from server.engine.slots import padded_tables

if TYPE_CHECKING:
    from models.step_graphs import ChosenTokens, StepGraphs


class RowChoices(NamedTuple):
    """How the device chooses the token of each row.

    filters: settings of each row; a temperature of 0 chooses the largest logit. uniforms: [rows], see `ops.draw`.
    """

    filters: Sequence[Filters]
    uniforms: NDArray[np.float64]


class CapturedSteps:
    """The captured steps of one model.

    block_size: of the cache. has_sources: whether the rows have a source in the cross-attention cache.
    """

    def __init__(self, graphs: StepGraphs, block_size: int, has_sources: bool) -> None:
        self._graphs, self._block_size, self._has_sources = graphs, block_size, has_sources

    def run(self, rows: Sequence[ScheduledRow], logits: LogitsRequest) -> DecoderOutput | None:
        """Compute a step. None where no captured step computes these rows."""
        batch = self._batch(rows)
        return None if batch is None else self._graphs.run(batch, logits)

    def launch(
        self, rows: Sequence[ScheduledRow], choices: RowChoices, after: Sequence[ScheduledRow] | None = None
    ) -> ChosenTokens | None:
        """Start a step whose tokens are chosen on the device. Reads nothing on the host.

        choices: how the token of each row is chosen.
        after: rows of the launched step before, if its tokens are not read. They include all of `rows`.
        Returns the tokens to come; None where no captured step computes these rows.
        """
        batch = self._batch(rows, after)
        return None if batch is None else self._graphs.launch(batch, choices.filters, choices.uniforms)

    def _batch(self, rows: Sequence[ScheduledRow], after: Sequence[ScheduledRow] | None = None) -> DecoderBatch | None:
        """The batch of a captured step, on the CPU: one token of each row, without adapters. after: see `launch`."""
        if any(row.num_tokens != 1 or row.group.adapter or row.sequence.draft or not row.needs_logits for row in rows):
            return None
        sequences, size = [row.sequence for row in rows], self._block_size
        positions = [sequence.num_computed_tokens + (after is not None) for sequence in sequences]
        key_lens = tuple(position + 1 for position in positions)
        source_lens = tuple(row.group.num_source_tokens for row in rows) if self._has_sources else ()
        if not self._graphs.takes((1,) * len(rows), key_lens, source_lens):
            return None
        if after is None:
            token_ids = [one.tokens[position] for one, position in zip(sequences, positions, strict=True)]
        else:
            places = {row.sequence: -1 - place for place, row in enumerate(after)}
            token_ids = [places[sequence] for sequence in sequences]
        tables = [one.block_table[: end // size + 1] for one, end in zip(sequences, positions, strict=True)]
        slots = [table[-1] * size + position % size for table, position in zip(tables, positions, strict=True)]
        columns = torch.from_numpy(np.array([token_ids, positions, slots], dtype=np.int64))
        source_tables = None
        if self._has_sources:
            source_tables = torch.from_numpy(padded_tables([row.group.cross_block_table for row in rows]))
        return DecoderBatch(
            token_ids=columns[0],
            positions=columns[1],
            query_lens=(1,) * len(rows),
            key_lens=key_lens,
            slot_mapping=columns[2],
            block_tables=torch.from_numpy(padded_tables(tables)),
            source_lens=source_lens,
            source_block_tables=source_tables,
        )
