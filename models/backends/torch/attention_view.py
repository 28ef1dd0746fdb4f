"""The reference's view of attention metadata: groups of rows for scaled dot-product attention, and their masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from models.backends.attention_metadata import AttentionMetadata, KeyBias

FEW_QUERIES = 8
"""With a paged cache, rows with at most this many queries are computed together, with padded keys. Longer rows are
computed one by one."""


@dataclass(frozen=True)
class RowGroup:
    """Rows that one call of scaled dot-product attention computes, with equally many queries.

    queries: indices of the `rows * query_len` query tokens, row by row.
    keys: indices of ragged keys; or blocks of a paged cache, [rows, blocks], int64, of which `key_len` keys are used.
    mask: added to the scores, broadcastable to [rows, heads, query_len, key_len]; or None.
    is_causal: query i sees keys 0..i, and nothing else hides keys.
    """

    rows: int
    query_len: int
    key_len: int
    queries: slice | Tensor
    keys: slice | Tensor
    mask: Tensor | None
    is_causal: bool


class TorchAttentionView:
    """Groups of rows for scaled dot-product attention, and their masks.

    The view keeps no reference to its metadata, which keeps the view: a reference cycle would keep the memory of a step
    until Python's garbage collector runs.

    groups: all rows with at least one query, divided into groups that are computed together.
    """

    reads_bias: ClassVar[bool] = True

    def __init__(self, metadata: AttentionMetadata, device: torch.device, dtype: torch.dtype) -> None:
        self.groups = _RowGroups(metadata, device, dtype).make()
        self._scratch: dict[tuple[int, ...], Tensor] = {}

    def scratch(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        """Memory for the gathered keys and values of a group, shared by all layers of the step.

        cache: [blocks, block_size, kv_heads, head_dim]. Returns two tensors of that shape, with as many blocks as the
            largest group has. Fresh memory for each layer would cost more than the attention, because the operating
            system maps every new page.
        """
        count = max((group.keys.numel() for group in self.groups if isinstance(group.keys, Tensor)), default=0)
        shape = (count, *cache.shape[1:])
        if shape not in self._scratch:
            self._scratch[shape] = cache.new_empty(2, *shape)
        keys, values = self._scratch[shape]
        return keys, values


class _RowGroups:
    """Divides the rows of a step into groups.

    device, dtype: device and dtype of the queries and the masks.
    """

    def __init__(self, metadata: AttentionMetadata, device: torch.device, dtype: torch.dtype) -> None:
        self._facts, self._device, self._dtype = metadata, device, dtype

    def make(self) -> tuple[RowGroup, ...]:
        """All rows with at least one query, divided into groups that are computed together."""
        make = self._ragged_group if self._facts.block_tables is None else self._paged_group
        rows = [row for row, count in enumerate(self._facts.query_lens) if count > 0]
        return tuple(make(group_rows) for group_rows in self._rows_of_one_shape(rows))

    def _rows_of_one_shape(self, rows: Sequence[int]) -> Iterator[list[int]]:
        """Divide rows into groups that are computed together.

        With ragged keys, the rows of a group have equal lengths. With paged keys, rows with more than FEW_QUERIES
        queries are computed one by one. Shorter rows form a group if they have equally many queries, and their numbers
        of blocks have equally many binary digits. Less than half of the gathered keys is then padding.
        """
        shapes: dict[tuple[int, int, int], list[int]] = {}
        for row in rows:
            query_len, key_len = self._facts.query_lens[row], self._facts.key_lens[row]
            if self._facts.block_tables is None:
                shape = (query_len, key_len, self._facts.first_positions[row])
            elif query_len <= FEW_QUERIES:
                first, end = self._visible_blocks(row)
                shape = (query_len, (end - first).bit_length(), 0)
            else:
                shape = (query_len, key_len, row)
            shapes.setdefault(shape, []).append(row)
        yield from shapes.values()

    def _visible_blocks(self, row: int) -> tuple[int, int]:
        """Index of the first block that a query of the row sees, and index after the row's last block."""
        key_len, first = self._facts.key_lens[row], 0
        if self._facts.window is not None:
            first = max(0, key_len - self._facts.query_lens[row] - self._facts.window + 1) // self._facts.block_size
        return first, -(-key_len // self._facts.block_size)

    def _ragged_group(self, rows: Sequence[int]) -> RowGroup:
        query_len, key_len = self._facts.query_lens[rows[0]], self._facts.key_lens[rows[0]]
        first_key = torch.zeros(1, 1, dtype=torch.int64, device=self._device)
        mask, is_causal = self._mask(first_key, key_len, query_len, rows[:1])
        return RowGroup(
            rows=len(rows),
            query_len=query_len,
            key_len=key_len,
            queries=self._tokens(rows, self._facts.query_lens),
            keys=self._tokens(rows, self._facts.key_lens, self._facts.key_starts),
            mask=mask,
            is_causal=is_causal,
        )

    def _paged_group(self, rows: Sequence[int]) -> RowGroup:
        assert self._facts.block_tables is not None
        spans = [self._visible_blocks(row) for row in rows]
        count = max(end - first for first, end in spans)
        first = torch.tensor([first for first, _ in spans], device=self._device)[:, None]
        last = torch.tensor([end - 1 for _, end in spans], device=self._device)[:, None]
        # Shorter rows repeat their own last block. Another row's block could hold NaN, and 0 * NaN is NaN.
        columns = torch.minimum(first + torch.arange(count, device=self._device), last)
        tables = self._facts.block_tables[torch.tensor(rows, device=self._device)]
        first_key = first * self._facts.block_size
        key_len = count * self._facts.block_size
        if len(rows) == 1:
            key_len = self._facts.key_lens[rows[0]] - spans[0][0] * self._facts.block_size
        query_len = self._facts.query_lens[rows[0]]
        mask, is_causal = self._mask(first_key, key_len, query_len, rows)
        return RowGroup(
            rows=len(rows),
            query_len=query_len,
            key_len=key_len,
            queries=self._tokens(rows, self._facts.query_lens),
            keys=tables.gather(1, columns),
            mask=mask,
            is_causal=is_causal,
        )

    def _tokens(
        self, rows: Sequence[int], lens: Sequence[int], starts_of: Sequence[int] | None = None
    ) -> slice | Tensor:
        """Indices of the rows' tokens. Adjacent rows give a slice, so that indexing copies nothing.

        rows: indices of rows. lens: for every row of the step, its number of tokens.

        starts_of: index of each row's first token; None where the tokens of a row follow those of the row before it.
        """
        offsets = (0, *accumulate(lens)) if starts_of is None else starts_of
        if starts_of is None and rows[-1] - rows[0] == len(rows) - 1:
            return slice(offsets[rows[0]], offsets[rows[-1] + 1])
        starts = torch.tensor([offsets[row] for row in rows], device=self._device)
        return (starts[:, None] + torch.arange(lens[rows[0]], device=self._device)).flatten()

    def _mask(self, first_key: Tensor, key_len: int, query_len: int, rows: Sequence[int]) -> tuple[Tensor | None, bool]:
        """The mask of a group, and whether the group is causal without further restrictions, so that it needs no mask.

        first_key: [rows, 1], position of each row's first gathered key. rows: indices of the group's rows.
        """
        ends = [self._facts.key_lens[row] for row in rows]
        # A single row has no padded keys; several rows may have some.
        exact = len(rows) == 1
        in_window = max(ends) <= min(self._facts.window or max(ends), self._facts.chunk or max(ends))
        if self._facts.score_bias is None and exact and in_window:
            if not self._facts.causal or self._facts.first_positions[rows[0]] == ends[0] - 1:
                return None, False
            if query_len == key_len:
                return None, True
        end = torch.tensor(ends, device=self._device)[:, None, None]
        keys = (first_key + torch.arange(key_len, device=self._device))[:, None, :]
        visible = keys < end
        starts = [self._facts.first_positions[row] for row in rows]
        first_query = torch.tensor(starts, device=self._device)[:, None, None]
        queries = first_query + torch.arange(query_len, device=self._device)[:, None]
        distance = keys - queries
        if self._facts.causal:
            visible = visible & (distance <= 0)
        if self._facts.window is not None:
            visible = visible & (distance.abs() < self._facts.window)
        if self._facts.chunk is not None:
            visible = visible & (keys >= queries - queries % self._facts.chunk)
        hidden = ~visible[:, None]
        if self._facts.score_bias is None:
            bias = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        elif isinstance(self._facts.score_bias, KeyBias):
            values = self._facts.score_bias.values
            bias = values[:, keys.clamp(max=values.shape[1] - 1)].transpose(0, 1)
        else:
            zero = self._facts.score_bias.shape[1] // 2
            bias = self._facts.score_bias[:, (distance + zero).clamp(0, 2 * zero)].transpose(0, 1)
        return bias.masked_fill(hidden, -torch.inf), False
