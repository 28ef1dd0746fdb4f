"""Attention of ragged rows of queries, for prefill and encoders, over ragged keys or a paged cache.

A program computes a tile of queries of one row and head, and runs through the visible keys in tiles that begin at
multiples of the tile's size. The bits of a query depend on its place in its row, not on other rows.
Source: Dao 2023, arXiv:2307.08691.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from models.backends.cuda.kernels.attention_arguments import Scores


class TileRows(NamedTuple):
    """The rows of a step, and where their queries and keys are.

    query_starts: [rows + 1], int32: index of each row's first query, and at the end the number of queries.
    key_lens: [rows], int32: keys of each row.
    first_positions: [rows], int32: position of each row's first query.
    max_query_len: largest number of queries of a row, or more.
    key_starts: [rows], int32: index of each row's first ragged key; None for a paged cache.
    block_tables: [rows, blocks], int32 or int64, blocks of each row in a paged cache; None for ragged keys.
    """

    query_starts: Tensor
    key_lens: Tensor
    first_positions: Tensor
    max_query_len: int
    key_starts: Tensor | None = None
    block_tables: Tensor | None = None


def tile_attention(
    query: Tensor, key: Tensor, value: Tensor, rows: TileRows, scores: Scores, out: Tensor | None = None
) -> Tensor:
    """Attention of all queries of a step.

    query: [tokens, heads, key_dim], model dtype; the last dimension contiguous.
    key, value: [key tokens, kv_heads, key_dim or value_dim], ragged; or [blocks, block_size, kv_heads, key_dim or
        value_dim], a paged cache. dtype of the query; the last dimension contiguous. kv_heads divides heads.
    out: [tokens, heads, value_dim], contiguous: memory for the result; None for new memory.
    Returns [tokens, heads, value_dim]. A query that sees no key gives zeros, or with sinks a share of zero.
    """
    raise NotImplementedError
