"""Memory for the inputs of captured decode steps, and the one copy that fills it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.backends.cuda.graphs.device_numbers import DeviceNumbers
from models.backends.cuda.graphs.graph_runner import GraphRunner
from models.backends.cuda.kernels.decode_attention import KEY_CHUNK_TOKENS
from models.backends.cuda.operations import NUM_FILTER_COLUMNS
from models.steps.batch import DecoderBatch


class CacheRows(NamedTuple):
    """Where the rows of a captured step find their keys in one cache.

    tables: [bucket, blocks], int32: cache blocks of each row.
    key_lens: [bucket], int64: number of keys of each row.
    partial_starts: [bucket], int64: index of each row's first partial result of decode attention.
    """

    tables: Tensor
    key_lens: Tensor
    partial_starts: Tensor


class GraphInputs(NamedTuple):
    """Inputs of a captured step on the device. A tensor has one int64 element per row of the bucket.

    token_places: index of each row's token id in `StepInputMemory.on_device`.
    caches: rows of the decoder's cache, then of the cross-attention cache if the model has one.
    """

    token_places: Tensor
    positions: Tensor
    slots: Tensor
    caches: tuple[CacheRows, ...]


_COLUMNS = 4
"""Number of columns before the columns of the caches: token id, index of the token id, position, slot."""


class StepInputMemory:
    """Memory for the inputs of captured steps, which the graphs of all buckets share, and the copy to it.

    rows: largest number of rows. widths: number of columns in the block table of each cache.
    on_device: [rows + size], int64: first the tokens that the last step has chosen, [rows], then the inputs of a step.
    """

    def __init__(self, runner: GraphRunner, device: torch.device, rows: int, widths: tuple[int, ...]) -> None:
        self._rows, self._num_columns = rows, _COLUMNS + 2 * len(widths)
        size = rows * (self._num_columns + sum(widths) + NUM_FILTER_COLUMNS)
        self._numbers = DeviceNumbers(runner, device, size, reserved=rows)
        self._tables = tuple(torch.zeros(rows, width, dtype=torch.int32, device=device) for width in widths)

    @property
    def on_device(self) -> Tensor:
        return self._numbers.on_device

    @property
    def chosen(self) -> Tensor:
        """Tokens that the last step has chosen, in the order of its rows: [rows], int64."""
        return self.on_device[: self._rows]

    def inputs(self, bucket: int) -> GraphInputs:
        """The inputs of the graph for `bucket` rows, set as for a step without rows.

        A capture with these inputs therefore writes to no cache.
        """
        numbers = self._numbers.copied[: self._num_columns * bucket].view(self._num_columns, bucket)
        numbers.zero_()
        numbers[3] = -1
        _, places, positions, slots, *of_caches = numbers.unbind()
        pairs = zip(of_caches[::2], of_caches[1::2], strict=True)
        caches = (CacheRows(table[:bucket], *pair) for table, pair in zip(self._tables, pairs, strict=True))
        return GraphInputs(places, positions, slots, tuple(caches))

    def write(
        self, batch: DecoderBatch, bucket: int, filter_columns: NDArray[np.float64] | None = None
    ) -> Tensor | None:
        """Copy the inputs of a step to the memory of a bucket's graph.

        batch: on the CPU. The token id `-1 - row` stands for the token that the last step has chosen for a row.
        filter_columns: [columns, rows], settings for drawing the tokens of the step; None to draw none.
        Returns these settings on the device, float64, or None.
        """
        numbers = self._numbers.to_write()
        rows, ids = len(batch.query_lens), batch.token_ids.numpy()
        columns = numbers[: self._num_columns * bucket].reshape(self._num_columns, bucket)
        # Rows without keys; a token with a negative slot is not stored.
        columns[:, rows:] = 0
        columns[3, rows:] = -1
        columns[0, :rows] = ids
        columns[1, :rows] = np.where(ids < 0, -1 - ids, self._rows + np.arange(rows))
        columns[2, :rows] = batch.positions.numpy()
        columns[3, :rows] = batch.slot_mapping.numpy()
        sides: list[tuple[Sequence[int], Tensor]] = [(batch.key_lens, batch.block_tables)]
        if batch.source_block_tables is not None:
            sides.append((batch.source_lens, batch.source_block_tables))
        end = columns.size
        spans = []
        for index, (lens, tables) in enumerate(sides):
            key_lens, starts = columns[_COLUMNS + 2 * index :, :rows][:2]
            key_lens[:] = lens
            # As `partial_starts`, for many rows at once.
            starts[0] = 0
            starts[1:] = np.cumsum(-(-key_lens[:-1] // KEY_CHUNK_TOKENS))
            spans.append((end, end + tables.numel(), tables.shape[1]))
            end += tables.numel()
            numbers[end - tables.numel() : end] = tables.numpy().ravel()
        filters_at = end
        if filter_columns is not None:
            end += filter_columns.size
            numbers[filters_at:end] = np.ascontiguousarray(filter_columns).view(np.int64).ravel()
        copied = self._numbers.send(end)
        for static, (first, last, width) in zip(self._tables, spans, strict=True):
            static[:rows, :width].copy_(copied[first:last].view(rows, width))
        if filter_columns is None:
            return None
        return copied[filters_at:].view(torch.float64).view(filter_columns.shape)
