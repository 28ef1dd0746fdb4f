"""Attention: the operations, and the choice of the backend that computes them, as in `interface`."""

from __future__ import annotations

from torch import Tensor

from models.backends.attention_metadata import AttentionMetadata
from models.backends.int8_slots import CacheSide
from models.backends.interface import backend
from models.backends.torch import disentangled_attention as torch_disentangled
from models.backends.torch import operations as torch_operations


def ragged_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention over keys and values that lie one sequence after the other, as the queries do.

    query: [tokens, heads, head_dim]. key, value: [key tokens, kv_heads, head_dim]. kv_heads divides heads.
    scale: factor of the scores. cap: scaled scores become `cap * tanh(score / cap)` before masks; None for no cap.
    sinks: [heads], float32, a score per head that takes part in the softmax and has no value; None for none.
    Returns [tokens, heads, head_dim].
    """
    return backend(query).ragged_attention(query, key, value, metadata, scale, cap, sinks)  # type: ignore[no-any-return]


def paged_attention(
    query: Tensor,
    key_cache: CacheSide,
    value_cache: CacheSide,
    metadata: AttentionMetadata,
    scale: float,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention over keys and values in the blocks of a cache, those of the current step included.

    query: [tokens, heads, head_dim]. key_cache, value_cache: [blocks, block_size, kv_heads, head_dim], or both in int8.
        Every slot of a row's blocks must hold finite numbers, even beyond the row's length.
        Both caches may be the same tensor.
    scale, cap, sinks: as for `ragged_attention`.
    Returns [tokens, heads, head_dim].
    """
    attend = backend(query).paged_attention
    return attend(query, key_cache, value_cache, metadata, scale, cap, sinks)  # type: ignore[no-any-return]


def block_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention of blocks of queries, each over its own keys.

    query: [blocks, size, heads, head_dim]. key, value: [blocks, key_len, kv_heads, head_dim].
    mask: added to the scores, broadcastable to [blocks, heads, size, key_len], or None. It leaves at least one key
        visible to each query.
    Returns a tensor like the query.
    """
    return torch_operations.block_attention(query, key, value, mask, scale)


def disentangled_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position_key: Tensor | None,
    position_query: Tensor | None,
    metadata: AttentionMetadata,
    scale: float,
) -> Tensor:
    """Self-attention of ragged sequences with scores that depend on distances.

    The score of query i and key j is `query_i · key_j + query_i · position_key[d] + key_j · position_query[d]`, scaled,
    where d is the row of distance `i - j`.

    query, key, value: [tokens, heads, head_dim].
    position_key, position_query: [rows, heads, head_dim], of the rows of `metadata.distances`, or None.
    Returns [tokens, heads, head_dim]. Source: He et al. 2021, arXiv:2006.03654, section 3.1.
    """
    return torch_disentangled.disentangled_attention(query, key, value, position_key, position_query, metadata, scale)
