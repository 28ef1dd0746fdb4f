"""Who looks at whom in one step, worked out once and used by every layer with the same sliding window.

The facts (lengths, block tables, window, bias) are for any implementation of attention; `groups` is the shape the
reference implementation wants them in, `queries` the shape for kernels on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """Rows of one shape, for one call of scaled dot-product attention without padding among the queries.

    queries: which tokens, `rows * query_len` of them, row by row. keys: which tokens (packed keys) or, with a paged
    cache, which blocks, [rows, blocks]; each row uses the first `key_len` of its keys.
    mask: added to the scores, broadcastable to [rows, heads, query_len, key_len], or None.
    is_causal: query i sees keys 0..i and nothing else hides keys.
    """

    rows: int
    query_len: int
    key_len: int
    queries: slice | Tensor
    keys: slice | Tensor
    mask: Tensor | None
    is_causal: bool


@dataclass(frozen=True)
class KeyBias:
    """A bias of each key by its position, whoever looks at it. values: [heads, length], model dtype."""

    values: Tensor


@dataclass(frozen=True)
class Distances:
    """Vectors of distances, `query position - key position`, for attention that looks at them.

    vectors: [rows, hidden], model dtype. row_of: [2 * length - 1], int64, the row of distance d at `d + length - 1`.
    """

    vectors: Tensor
    row_of: Tensor


@dataclass(frozen=True)
class Queries:
    """Every query of a step with the keys it sees, for kernels on a CPU.

    numbers: int32, `count` of each column, one column after the other. Its row, whose blocks it looks into; 0 for
    packed keys, which are one endless block. Start and end of the keys that it sees; packed keys count from the step's
    first. Origin, the key at which its bias has number `bias_zero`: itself for a bias by distance, its row's first key
    for a `KeyBias`. Behind them `tiles`.
    """

    numbers: Tensor
    count: int

    @property
    def tiles(self) -> Tensor:
        """[tiles, 3], first query, how many, and the row's first key: queries of one row that follow each other; those
        with most work first."""
        return self.numbers[4 * self.count :].view(-1, 3)

    @property
    def num_tiles(self) -> int:
        return (len(self.numbers) - 4 * self.count) // 3

    @property
    def addresses(self) -> list[int]:
        """Of the four columns and the tiles."""
        first, size = self.numbers.data_ptr(), self.numbers.element_size()
        return [first + column * self.count * size for column in range(5)]


TILE_QUERIES = 64
"""As many queries of a row are worth sharing the work on a key; more tiles keep more threads busy."""

TILE_TOKENS = 256
"""The same where queries see what follows them: there are many texts, and a tile fetches the keys of each once."""

ENDLESS, _ONE_BLOCK = 1 << 40, torch.zeros(1, 1, dtype=torch.int64)
"""Packed keys are, for kernels on a CPU, a cache of one block: its size, and its table."""

FEW_QUERIES = 8
"""Of the reference: rows with at most so many queries are computed together, padding their keys; others one by one."""


@dataclass(frozen=True)
class AttentionPlan:
    """Query and key lengths of each row, what hides a key from a query, and where the keys are.

    query_lens, key_lens: `rows` integers; the queries of a row are its last `query_lens[i]` positions where the plan
    is causal, and there may be none. window: a query sees its own position and the `window - 1` before it; if not
    causal, as many after it. firsts: where the queries of each row begin instead, of packed keys only.
    score_bias: [heads, 2 * length - 1], model dtype, the bias of distance `key - query` at `distance + length - 1`;
    or a `KeyBias`.
    block_tables: [rows, blocks], int64, or None for packed keys. A row reads no other blocks than its own.
    dtype, device: of the tensors that masks are added to.
    """

    query_lens: tuple[int, ...]
    key_lens: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    causal: bool = False
    window: int | None = None
    score_bias: Tensor | KeyBias | None = None
    block_tables: Tensor | None = None
    block_size: int = 0
    distances: Distances | None = None
    firsts: tuple[int, ...] | None = None
    _scratch: dict[tuple[int, ...], Tensor] = field(default_factory=dict, repr=False)
    _queries: list[Queries] = field(default_factory=list, repr=False)

    def scratch(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        """Room for the keys and the values of any group, which the layers of a step use in turn.

        cache: [blocks, block_size, kv_heads, head_dim] -> two of the same shape, as many blocks as a group has at most.
        Fresh memory for each layer would cost more than the attention itself: every page of it has to be mapped.
        """
        count = max((group.keys.numel() for group in self.groups if isinstance(group.keys, Tensor)), default=0)
        shape = (count, *cache.shape[1:])
        if shape not in self._scratch:
            self._scratch[shape] = cache.new_empty(2, *shape)
        keys, values = self._scratch[shape]
        return keys, values

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The shape that the reference implementation wants."""
        group = self._packed_group if self.block_tables is None else self._paged_group
        rows = [row for row, count in enumerate(self.query_lens) if count > 0]
        return tuple(group(one) for one in self._rows_of_one_shape(rows))

    @cached_property
    def _firsts(self) -> tuple[int, ...]:
        """Position of each row's first query."""
        ends = zip(self.key_lens, self.query_lens, strict=True)
        return tuple(end - count for end, count in ends) if self.firsts is None else self.firsts

    @property
    def queries(self) -> Queries:
        """The shape that kernels on a CPU want; shared with the plans that `biased` makes."""
        if not self._queries:
            self._queries.append(self._make_queries())
        return self._queries[0]

    def _make_queries(self) -> Queries:
        count = len(self.query_lens)
        if self.block_tables is not None and self.query_lens.count(1) == count:
            return self._one_query_each()
        counts, key_lens = np.array(self.query_lens), np.array(self.key_lens)
        rows, tiles = np.repeat(np.arange(count), counts), _tiles(counts, TILE_QUERIES if self.causal else TILE_TOKENS)
        lens = key_lens[rows]
        positions = np.array(self._firsts)[rows] + _within(counts)
        ends = positions + 1 if self.causal else lens
        if self.window is not None and not self.causal:
            ends = np.minimum(ends, positions + self.window)
        starts = np.zeros_like(ends) if self.window is None else np.maximum(positions - self.window + 1, 0)
        if tiles.shape[0] > 1 and len(rows) > count:
            seen = ends[tiles[:, 0] + tiles[:, 1] - 1] - starts[tiles[:, 0]]
            tiles = tiles[np.argsort(-seen * tiles[:, 1], kind="stable")]
        origins = np.zeros_like(ends) if isinstance(self.score_bias, KeyBias) else positions
        if self.block_tables is None:
            first = (np.cumsum(key_lens) - key_lens)[rows]
            tiles[:, 2] = first[tiles[:, 0]]
            starts, ends, origins, rows = starts + first, ends + first, origins + first, np.zeros_like(rows)
        numbers = np.concatenate([rows, starts, ends, origins, tiles.ravel()])
        return Queries(torch.from_numpy(numbers.astype(np.int32)), len(rows))

    def _one_query_each(self) -> Queries:
        """What the general way finds as well: a decode step is short, and arrays cost more than its few numbers."""
        ends, count = self.key_lens, len(self.key_lens)
        starts = [0] * count if self.window is None else [max(end - self.window, 0) for end in ends]
        origins = [0] * count if isinstance(self.score_bias, KeyBias) else [end - 1 for end in ends]
        tiles = [number for row in range(count) for number in (row, 1, 0)]
        numbers = np.array([*range(count), *starts, *ends, *origins, *tiles], dtype=np.int32)
        return Queries(torch.from_numpy(numbers), count)

    def biased(self, score_bias: Tensor) -> AttentionPlan:
        """The same plan with another bias by distance."""
        return replace(self, score_bias=score_bias)

    @cached_property
    def bias_float32(self) -> Tensor | None:
        """[heads, distances or keys], float32, contiguous; or None."""
        bias = self.score_bias.values if isinstance(self.score_bias, KeyBias) else self.score_bias
        return None if bias is None else bias.float().contiguous()

    @property
    def bias_zero(self) -> int:
        """Number of the bias at a query's origin: the middle of the distances, or the first key."""
        return self.score_bias.shape[-1] // 2 if isinstance(self.score_bias, Tensor) else 0

    @property
    def tables(self) -> Tensor:
        """`block_tables`, also of packed keys: [rows, blocks], int64."""
        return _ONE_BLOCK if self.block_tables is None else self.block_tables

    @property
    def facts(self) -> dict[str, int]:
        """Addresses and numbers of this plan, by their names in `struct Attention` of the compiled kernels."""
        queries, tables, bias = self.queries, self.tables, self.score_bias
        rows, starts, ends, origins, tiles = queries.addresses
        values = bias.values if isinstance(bias, KeyBias) else bias
        return {
            "tables": tables.data_ptr(),
            "table_width": tables.shape[1],
            "block_size": self.block_size,
            "rows": rows,
            "starts": starts,
            "ends": ends,
            "origins": origins,
            "tiles": tiles,
            "num_tiles": queries.num_tiles,
            "bias_stride": 0 if values is None else values.shape[-1],
            "bias_zero": self.bias_zero,
        }

    def _rows_of_one_shape(self, rows: Sequence[int]) -> Iterator[list[int]]:
        """Packed: rows of equal lengths. Paged: few queries, as many in each row, whose block counts have the same
        number of binary digits, so that less than half of what is gathered is padding; others one row at a time."""
        shapes: dict[tuple[int, int, int], list[int]] = {}
        for row in rows:
            query_len, key_len = self.query_lens[row], self.key_lens[row]
            if self.block_tables is None:
                shape = (query_len, key_len, self._firsts[row])
            elif query_len <= FEW_QUERIES:
                first, end = self._visible_blocks(row)
                shape = (query_len, (end - first).bit_length(), 0)
            else:
                shape = (query_len, key_len, row)
            shapes.setdefault(shape, []).append(row)
        yield from shapes.values()

    def _visible_blocks(self, row: int) -> tuple[int, int]:
        """First block that any query of the row sees, and the end of its blocks."""
        key_len, first = self.key_lens[row], 0
        if self.window is not None:
            first = max(0, key_len - self.query_lens[row] - self.window + 1) // self.block_size
        return first, -(-key_len // self.block_size)

    def _packed_group(self, rows: Sequence[int]) -> Group:
        query_len, key_len = self.query_lens[rows[0]], self.key_lens[rows[0]]
        first_key = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        mask, is_causal = self._mask(first_key, key_len, query_len, rows[:1])
        return Group(
            rows=len(rows),
            query_len=query_len,
            key_len=key_len,
            queries=self._tokens(rows, self.query_lens),
            keys=self._tokens(rows, self.key_lens),
            mask=mask,
            is_causal=is_causal,
        )

    def _paged_group(self, rows: Sequence[int]) -> Group:
        assert self.block_tables is not None
        spans = [self._visible_blocks(row) for row in rows]
        count = max(end - first for first, end in spans)
        first = torch.tensor([first for first, _ in spans], device=self.device)[:, None]
        last = torch.tensor([end - 1 for _, end in spans], device=self.device)[:, None]
        # Beyond a row's own blocks its last one is repeated: another row's block might hold NaN, and 0 * NaN is NaN.
        columns = torch.minimum(first + torch.arange(count, device=self.device), last)
        tables = self.block_tables[torch.tensor(rows, device=self.device)]
        first_key = first * self.block_size
        key_len = count * self.block_size
        if len(rows) == 1:
            key_len = self.key_lens[rows[0]] - spans[0][0] * self.block_size
        query_len = self.query_lens[rows[0]]
        mask, is_causal = self._mask(first_key, key_len, query_len, rows)
        return Group(
            rows=len(rows),
            query_len=query_len,
            key_len=key_len,
            queries=self._tokens(rows, self.query_lens),
            keys=tables.gather(1, columns),
            mask=mask,
            is_causal=is_causal,
        )

    def _tokens(self, rows: Sequence[int], lens: Sequence[int]) -> slice | Tensor:
        """Indices of the rows' tokens; a slice, which copies nothing, where they lie side by side."""
        offsets = (0, *accumulate(lens))
        if rows[-1] - rows[0] == len(rows) - 1:
            return slice(offsets[rows[0]], offsets[rows[-1] + 1])
        starts = torch.tensor([offsets[row] for row in rows], device=self.device)
        return (starts[:, None] + torch.arange(lens[rows[0]], device=self.device)).flatten()

    def _mask(self, first_key: Tensor, key_len: int, query_len: int, rows: Sequence[int]) -> tuple[Tensor | None, bool]:
        """What is added to the scores, and whether plain causality says it all. first_key: [rows, 1], a position."""
        ends = [self.key_lens[row] for row in rows]
        # One row's keys are cut to its length and begin at 0 unless a window or several rows say otherwise.
        exact = len(rows) == 1
        in_window = self.window is None or max(ends) <= self.window
        if self.score_bias is None and exact and in_window:
            if not self.causal or self._firsts[rows[0]] == ends[0] - 1:
                return None, False
            if query_len == key_len:
                return None, True
        end = torch.tensor(ends, device=self.device)[:, None, None]
        keys = (first_key + torch.arange(key_len, device=self.device))[:, None, :]
        visible = keys < end
        first_query = torch.tensor([self._firsts[row] for row in rows], device=self.device)[:, None, None]
        queries = first_query + torch.arange(query_len, device=self.device)[:, None]
        distance = keys - queries
        if self.causal:
            visible = visible & (distance <= 0)
        if self.window is not None:
            visible = visible & (distance.abs() < self.window)
        hidden = ~visible[:, None]
        if self.score_bias is None:
            bias = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        elif isinstance(self.score_bias, KeyBias):
            values = self.score_bias.values
            bias = values[:, keys.clamp(max=values.shape[1] - 1)].transpose(0, 1)
        else:
            zero = self.score_bias.shape[1] // 2
            bias = self.score_bias[:, (distance + zero).clamp(0, 2 * zero)].transpose(0, 1)
        return bias.masked_fill(hidden, -torch.inf), False


def _within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, 2... up to each count, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _tiles(counts: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """[tiles, 3]: first query, count, up to `most`, and zero; for rows of so many queries, row by row."""
    tiles = -(-counts // most)
    within = _within(tiles) * most
    firsts = np.repeat(np.cumsum(counts) - counts, tiles) + within
    return np.stack([firsts, np.minimum(np.repeat(counts, tiles) - within, most), np.zeros_like(firsts)], 1)
