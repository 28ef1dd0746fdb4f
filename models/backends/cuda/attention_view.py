"""Attention metadata in the form that the Triton kernels read: int32 columns that are copied to the device once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.backends import fixed_order
from models.backends.attention_metadata import AttentionMetadata, KeyBias
from models.backends.cuda.kernels.attention_arguments import ScoreBias, Scores
from models.backends.cuda.kernels.decode_attention import DecodeRows, Partials, num_splits, partial_starts
from models.backends.cuda.kernels.tile_attention import TileRows, spans_of_queries

INTERPRETED_PROCESSORS = 4
"""Number of multiprocessors that is assumed where Triton's interpreter replaces a device."""


class CudaAttentionView:
    """Attention metadata of a step as the Triton kernels read it.

    All layers with the same attention pattern share one view. With `fixed_order.enabled`, tile attention also
    computes decode steps, because tile attention and decode attention give different bits. A query then gets the same
    bits in a prefill and in a decode step.

    decode: the rows for decode attention, if each row has one query and the keys are in a paged cache; else None.
    tiles: the rows for tile attention; None if `decode` is set.
    max_key_len: upper bound of `key_lens`, the number of keys per row.
    num_partials: number of partial results of decode attention.
    """

    reads_bias: ClassVar[bool] = False

    def __init__(self, metadata: AttentionMetadata, device: torch.device) -> None:
        self.decode: DecodeRows | None = None
        self.tiles: TileRows | None = None
        self.max_key_len = max(metadata.key_lens, default=0)
        self.num_partials = 0
        self._device = device
        self._partials: dict[tuple[int, int], Partials] = {}
        rows = len(metadata.query_lens)
        has_single_queries = metadata.query_lens.count(1) == rows and not fixed_order.enabled
        if metadata.block_tables is not None and has_single_queries:
            starts = partial_starts(metadata.key_lens)
            self.num_partials = starts[-1]
            key_lens, first_partials = self._upload(metadata.key_lens, starts[:-1])
            self.decode = DecodeRows(metadata.block_tables, key_lens, first_partials)
            return
        starts = [0, *accumulate(metadata.query_lens)]
        columns = [metadata.key_lens, metadata.first_positions]
        if metadata.block_tables is None:
            ends = list(accumulate(metadata.key_lens))
            columns.append(tuple([0, *ends][:rows]) if metadata.key_starts is None else metadata.key_starts)
        spans = spans_of_queries(np.array(metadata.query_lens), np.array(metadata.key_lens))
        query_starts, key_lens, *others, on_device = self._upload(starts, *columns, spans.ravel())
        key_starts = others[1] if metadata.block_tables is None else None
        self.tiles = TileRows(
            query_starts, key_lens, others[0], on_device.view(-1, 2), key_starts, metadata.block_tables
        )

    @classmethod
    def of_rows(
        cls,
        rows: DecodeRows,
        max_key_len: int,
        num_partials: int,
        partials: dict[tuple[int, int], Partials],
    ) -> CudaAttentionView:
        """The view of a captured decode step. The contents of its tensors change between replays.

        rows: tensors in the memory of the graph.
        max_key_len, num_partials: upper bounds for all replays.
        partials: memory for partial results, which all captured steps share. The method `partials` allocates it during
            the first capture, that of the step with the most rows.
        """
        view = cls.__new__(cls)
        view.decode, view.tiles = (None, _as_tiles(rows)) if fixed_order.enabled else (rows, None)
        view.max_key_len, view.num_partials = max_key_len, num_partials
        view._device, view._partials = rows.key_lens.device, partials
        return view

    @classmethod
    def of_tiles(cls, rows: TileRows) -> CudaAttentionView:
        """The view of a captured step whose rows have any number of queries.

        rows: tensors in the memory of the graph. Their contents change between replays.
        """
        view = cls.__new__(cls)
        view.decode, view.tiles = None, rows
        view.max_key_len = view.num_partials = 0
        view._device, view._partials = rows.key_lens.device, {}
        return view

    def partials(self, num_heads: int, value_dim: int) -> Partials:
        """Memory for partial results. Layers with the same numbers of heads and value dimensions share it."""
        key = num_heads, value_dim
        if key not in self._partials:
            assert self.decode is not None
            rows = self.decode.key_lens.shape[0]
            self._partials[key] = Partials.empty(self.num_partials, rows, num_heads, value_dim, self._device)
        return self._partials[key]

    def splits(self, num_kv_heads: int) -> int:
        """Number of programs that share a row and key-value head in decode attention.

        The results are the same for any number.
        """
        assert self.decode is not None
        rows = self.decode.key_lens.shape[0]
        return num_splits(rows, num_kv_heads, self.max_key_len, _num_processors(self._device))

    def _upload(self, *columns: Sequence[int] | NDArray[np.int64]) -> list[Tensor]:
        """Copy columns of int32 numbers to the device, all in one copy. Returns one tensor per column."""
        numbers = torch.from_numpy(np.concatenate([np.array(column, dtype=np.int32) for column in columns]))
        on_device = numbers.to(self._device, non_blocking=True)
        return list(torch.split(on_device, [len(column) for column in columns]))


def _as_tiles(rows: DecodeRows) -> TileRows:
    """The rows of a decode step for tile attention. Unused rows have no keys, and give zeros."""
    key_lens = rows.key_lens
    starts = torch.arange(key_lens.shape[0] + 1, dtype=torch.int32, device=key_lens.device)
    # Each row is one span, number 0.
    spans = torch.stack([starts[:-1], torch.zeros_like(key_lens)], 1)
    return TileRows(starts, key_lens, key_lens - 1, spans, block_tables=rows.block_tables)


def scores_of(metadata: AttentionMetadata, scale: float, cap: float | None, sinks: Tensor | None) -> Scores:
    """How the kernels compute the attention scores of one layer."""
    values = metadata.bias_float32
    bias = None if values is None else ScoreBias(values, isinstance(metadata.score_bias, KeyBias))
    return Scores(scale, metadata.causal, metadata.window, metadata.chunk, cap, sinks, bias)


@cache
def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
