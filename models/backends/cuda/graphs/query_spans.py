"""Rows with any number of queries in the memory of a captured step: where their queries and keys are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.backends.cuda.kernels.tile_attention import NO_QUERIES, max_spans, spans_of_queries

Numbers = NDArray[np.int64]


class RowsLayout(NamedTuple):
    """Layout of the numbers that describe rows in a captured step. Rows and spans that a step lacks have no queries.

    tokens, rows: largest number of queries, and of rows. columns: how many columns have one number for each row.
    """

    tokens: int
    rows: int
    columns: int

    @property
    def size(self) -> int:
        """How many numbers the rows have."""
        return self.rows + 1 + self.columns * self.rows + 2 * self._spans

    @property
    def _spans(self) -> int:
        return max_spans(self.tokens, self.rows)

    def write(self, numbers: Numbers, query_lens: Numbers, key_lens: Numbers, columns: list[Numbers]) -> None:
        """Write the rows of a step.

        numbers: [size], written. query_lens, key_lens: [step rows], number of queries and keys of each row.
        columns: numbers of each row, [step rows] each.
        """
        count, end = len(query_lens), self.rows + 1
        starts = numbers[:end]
        starts[0] = 0
        starts[1 : count + 1] = query_lens.cumsum()
        starts[count + 1 :] = starts[count]
        for column in columns:
            numbers[end : end + count] = column
            numbers[end + count : end + self.rows] = 0
            end += self.rows
        found, pairs = spans_of_queries(query_lens, key_lens), numbers[end:].reshape(-1, 2)
        pairs[: len(found)] = found
        pairs[len(found) :] = 0, NO_QUERIES

    def read(self, numbers: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """The parts of the numbers on the device: query_starts, columns and spans, as in `TileRows`.

        numbers: [size], int32.
        """
        starts, *own, spans = torch.split(numbers, [self.rows + 1, *[self.rows] * self.columns, 2 * self._spans])
        return starts, own, spans.view(-1, 2)
