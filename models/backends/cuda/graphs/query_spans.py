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
    """Layout of the integers that describe the rows of a captured step. Unused rows and spans have no queries.

    tokens, rows: largest number of queries, and of rows. columns: number of columns, which have one integer per row.
    """

    tokens: int
    rows: int
    columns: int

    @property
    def size(self) -> int:
        """Number of integers that describe the rows."""
        return self.rows + 1 + self.columns * self.rows + 2 * self._spans

    @property
    def _spans(self) -> int:
        return max_spans(self.tokens, self.rows)

    def write(self, numbers: Numbers, query_lens: Numbers, key_lens: Numbers, columns: list[Numbers]) -> None:
        """Write the integers that describe the rows of a step.

        numbers: [size], memory for the integers.
        query_lens, key_lens: [step rows], number of queries and keys of each row.
        columns: [step rows] each, one integer per row.
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
        """Split the integers on the device into query_starts, columns and spans, as in `TileRows`.

        numbers: [size], int32.
        """
        starts, *own, spans = torch.split(numbers, [self.rows + 1, *[self.rows] * self.columns, 2 * self._spans])
        return starts, own, spans.view(-1, 2)
