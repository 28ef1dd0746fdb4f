"""Attention of one query per row over a paged cache: keys in chunks of 256 tokens, merged in order.

Each chunk gives a partial result for each head; a second kernel merges the partial results of a row in the order of the
chunks. The bits of a row therefore depend neither on the number of splits nor on the other rows.
Source: Dao et al. 2023, "Flash-Decoding"; Milakov and Gimelshein 2018, arXiv:1805.02867.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from models.backends.cuda.kernels.attention_arguments import Scores

CHUNK_TOKENS = 256
"""Tokens of a chunk. Chunks begin at multiples of it, counted from the first token of the row."""


class DecodeRows(NamedTuple):
    """The rows of a decode step, with one query each, the last position of the row.

    block_tables: [rows, blocks], int32 or int64: blocks of each row.
    key_lens: [rows], int32: keys of each row, those of the current step included. A row with 0 keys, as in the unused
        rows of a graph, gives zeros and reads no block.
    partial_starts: [rows], int32: index of each row's first partial result, see `partial_starts`.
    """

    block_tables: Tensor
    key_lens: Tensor
    partial_starts: Tensor


class Partials(NamedTuple):
    """Memory for partial results, all float32; layers may share it.

    sums: [partials, heads, value_dim]. maxima, totals: [partials, heads].
    """

    sums: Tensor
    maxima: Tensor
    totals: Tensor

    @classmethod
    def empty(cls, num_partials: int, num_heads: int, value_dim: int, device: torch.device) -> Partials:
        """Allocate memory for `num_partials` chunks of rows."""
        raise NotImplementedError


def partial_starts(key_lens: Sequence[int]) -> list[int]:
    """Index of each row's first partial result, and at the end their number: [rows + 1]."""
    raise NotImplementedError


def num_splits(rows: int, num_kv_heads: int, max_key_len: int, num_processors: int) -> int:
    """Programs per row and key-value head that fill a device of `num_processors` multiprocessors."""
    raise NotImplementedError


def paged_decode_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    rows: DecodeRows,
    scores: Scores,
    splits: int,
    partials: Partials,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of one query per row over the blocks of a cache, those of the current step included.

    query: [rows, heads, key_dim], model dtype; the last dimension contiguous.
    key_cache: [blocks, block_size, kv_heads, key_dim]. value_cache: [blocks, block_size, kv_heads, value_dim]. dtype of
        the query; the last dimension contiguous. kv_heads divides heads. Both may be the same tensor.
    scores: `causal` has no effect: the query is the last position. With `causal=False` (cross-attention) likewise.
    splits: programs that share the chunks of a row and key-value head. It changes no bit.
    partials: memory for the partial results of all rows.
    out: [rows, heads, value_dim], contiguous: memory for the result; None for new memory.
    Returns [rows, heads, value_dim].
    """
    raise NotImplementedError
