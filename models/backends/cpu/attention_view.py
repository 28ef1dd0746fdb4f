"""Attention metadata in the form that the CPU kernels read: visible keys of each query, and tiles of queries."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.backends.attention_metadata import AttentionMetadata, KeyBias
from models.backends.cpu.programs import inputs
from models.backends.cpu.programs.inputs import AttentionFields
from models.backends.cpu.programs.trace import SymbolicMetadata

MAX_TILE_QUERIES = 256
"""Maximum number of queries of a tile. The queries of a tile share each load of a key from memory."""

MIN_TILE_QUERIES = 64
"""The smallest limit that `_causal_tile_queries` sets for the queries of a tile. The last tile of a row may have
fewer."""

TILES_PER_THREAD = 2
"""Desired number of causal tiles per thread. Later tiles have more visible keys, and one can take several times as long
as another. With fewer tiles per thread, the threads would therefore finish far apart."""

ENDLESS = 1 << 40
"""Block size for ragged keys. The kernels read ragged keys as a cache that has a single block of this size."""

_ONE_BLOCK = torch.zeros(1, 1, dtype=torch.int64)
"""Block table for ragged keys: one row, with the index of the single block, 0."""


class CpuAttentionView:
    """Fields of `struct Attention` (`kernels/kernels.h`) that are equal for all layers of a step.

    fields: the values of these fields, which are addresses and numbers. The memory at the addresses lives as long as
        the view.
    """

    reads_bias: ClassVar[bool] = False

    def __init__(self, metadata: AttentionMetadata) -> None:
        numbers, count = _columns(metadata)
        self._numbers, self._num_queries = torch.from_numpy(numbers), count
        self._tables = _ONE_BLOCK if metadata.block_tables is None else metadata.block_tables
        first = self._numbers.data_ptr()
        rows, starts, ends, origins, tiles = range(first, first + 5 * 4 * count, 4 * count) if count else [first] * 5
        bias = metadata.score_bias
        values = bias.values if isinstance(bias, KeyBias) else bias
        # Index of the bias of the origin key. Distance 0 is in the middle of a distance bias. A key bias begins with
        # the first key.
        bias_zero = 0 if values is None or isinstance(bias, KeyBias) else values.shape[-1] // 2
        self.fields = AttentionFields(
            self._tables.data_ptr(),
            self._tables.shape[1],
            metadata.block_size or ENDLESS,
            rows,
            starts,
            ends,
            origins,
            tiles,
            (len(numbers) - 4 * count) // 3,
            0 if values is None else values.shape[-1],
            bias_zero,
        )

    @property
    def tiles(self) -> Tensor:
        """The tiles of queries: [tiles, 3], int32.

        Each tile has the index of its first query, its number of queries, and the index of the first key of its row (0
        for a paged cache).
        """
        return self._numbers[4 * self._num_queries :].view(-1, 3)

    @staticmethod
    def fields_of(metadata: AttentionMetadata | SymbolicMetadata) -> dict[str, Any]:
        """All fields of `struct Attention` that come from the metadata, by name.

        For symbolic metadata the values are program inputs.
        """
        if isinstance(metadata, SymbolicMetadata):
            fields = inputs.attention(metadata.pattern)._asdict() | {"bias": metadata.bias}
            return fields if metadata.bias is not None else fields | {"bias_stride": 0, "bias_zero": 0}
        return {**metadata.view(CpuAttentionView).fields._asdict(), "bias": metadata.bias_float32}


def _columns(metadata: AttentionMetadata) -> tuple[NDArray[np.int32], int]:
    """Compute the integers per query and the tiles that the kernels read.

    Returns one array, [4 * queries + 3 * tiles], int32, and the number of queries. The array is the concatenation of
    four columns and the tiles (`CpuAttentionView.tiles`). Each column has one integer per query:

    - index of the row whose blocks the query reads (0 for ragged keys);
    - index of the first key that the query sees;
    - index after the last key that the query sees;
    - origin: index of the key whose bias is at index `bias_zero`.

    Indices of ragged keys count from the first key of the step.
    """
    count = len(metadata.query_lens)
    if metadata.block_tables is not None and metadata.query_lens.count(1) == count:
        return _decode_columns(metadata), count
    causal, window = metadata.causal, metadata.window
    counts, key_lens = np.array(metadata.query_lens), np.array(metadata.key_lens)
    rows = np.repeat(np.arange(count), counts)
    tiles = _tiles(counts, _causal_tile_queries(len(rows)) if causal else MAX_TILE_QUERIES)
    lens = key_lens[rows]
    positions = np.array(metadata.first_positions)[rows] + _within(counts)
    ends = positions + 1 if causal else lens
    if window is not None and not causal:
        ends = np.minimum(ends, positions + window)
    starts = np.zeros_like(ends) if window is None else np.maximum(positions - window + 1, 0)
    if metadata.chunk is not None:
        starts = positions - positions % metadata.chunk
    if tiles.shape[0] > 1 and len(rows) > count:
        # Tiles with the most work first, so that threads finish together.
        visible = ends[tiles[:, 0] + tiles[:, 1] - 1] - starts[tiles[:, 0]]
        tiles = tiles[np.argsort(-visible * tiles[:, 1], kind="stable")]
    origins = np.zeros_like(ends) if isinstance(metadata.score_bias, KeyBias) else positions
    if metadata.block_tables is None:
        first = np.cumsum(key_lens) - key_lens if metadata.key_starts is None else np.array(metadata.key_starts)
        first = first[rows]
        tiles[:, 2] = first[tiles[:, 0]]
        starts, ends, origins, rows = starts + first, ends + first, origins + first, np.zeros_like(rows)
    return np.concatenate([rows, starts, ends, origins, tiles.ravel()]).astype(np.int32), len(rows)


def _decode_columns(metadata: AttentionMetadata) -> NDArray[np.int32]:
    """The array that `_columns` returns, for paged keys and one query per row.

    Such a step has few integers, so Python lists are faster than NumPy arrays.
    """
    ends, count, window, chunk = metadata.key_lens, len(metadata.key_lens), metadata.window, metadata.chunk
    starts = [0] * count if window is None else [max(end - window, 0) for end in ends]
    if chunk is not None:
        starts = [(end - 1) // chunk * chunk for end in ends]
    origins = [0] * count if isinstance(metadata.score_bias, KeyBias) else [end - 1 for end in ends]
    tiles = [number for row in range(count) for number in (row, 1, 0)]
    return np.array([*range(count), *starts, *ends, *origins, *tiles], dtype=np.int32)


def _within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index of each element within its group: 0 to n - 1 for each group size n in `counts`, concatenated."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _causal_tile_queries(queries: int) -> int:
    """Maximum number of queries per tile in a causal step. queries: number of queries of the step."""
    share = -(-queries // (TILES_PER_THREAD * torch.get_num_threads()))
    return min(max(share, MIN_TILE_QUERIES), MAX_TILE_QUERIES)


def _tiles(counts: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Cut the queries of each row into tiles.

    counts: number of queries of each row.
    most: maximum number of queries of a tile.
    Returns [tiles, 3]: index of the first query, number of queries, and 0, which the caller replaces for ragged keys.
    """
    tiles = -(-counts // most)
    within = _within(tiles) * most
    firsts = np.repeat(np.cumsum(counts) - counts, tiles) + within
    return np.stack([firsts, np.minimum(np.repeat(counts, tiles) - within, most), np.zeros_like(firsts)], 1)
