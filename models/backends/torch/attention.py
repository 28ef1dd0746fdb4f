"""Attention in plain torch: the reference."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from models.backends.attention_metadata import AttentionMetadata
from models.backends.rounded_slots import CacheSide, RoundedSlots
from models.backends.torch.attention_view import RowGroup, TorchAttentionView
from models.backends.torch.disentangled_attention import disentangled_attention


class TorchAttention:
    """Attention over ragged keys, over a paged cache, and in blocks of queries; disentangled attention."""

    def ragged_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention over ragged keys and values, which lie one sequence after the other, like the queries.

        query: [tokens, heads, head_dim]. key, value: [key tokens, kv_heads, head_dim]. kv_heads divides heads.
        scale: factor of the scores. cap: scaled scores become `cap * tanh(score / cap)` before masks; None for no cap.
        sinks: [heads], float32, a score per head that takes part in the softmax and has no value; None for no sinks.
        Returns [tokens, heads, head_dim].
        """
        output = torch.empty_like(query)
        for group in metadata.view(TorchAttentionView, query.device, query.dtype).groups:
            keys, values = (_by_row(side[group.keys], group.rows) for side in (key, value))
            _attend(output, query, keys, values, group, scale, cap, sinks)
        return output

    def paged_attention(
        self,
        query: Tensor,
        key_cache: CacheSide,
        value_cache: CacheSide,
        metadata: AttentionMetadata,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention over the keys and values in a paged cache, which already contains the keys of the current step.

        query: [tokens, heads, head_dim].
        key_cache, value_cache: [blocks, block_size, kv_heads, head_dim], or both RoundedSlots. Every slot of a row's
            blocks must hold finite numbers, even beyond the row's length. Both caches may be the same tensor.
        scale: factor of the scores. cap: scaled scores become `cap * tanh(score / cap)` before masks; None for no cap.
        sinks: [heads], float32, a score per head that takes part in the softmax and has no value; None for no sinks.
        Returns [tokens, heads, head_dim].
        """
        output = torch.empty_like(query)
        view = metadata.view(TorchAttentionView, query.device, query.dtype)
        for group in view.groups:
            if isinstance(key_cache, RoundedSlots) or isinstance(value_cache, RoundedSlots):
                keys, values = (_gather_int8(side, group, query.dtype) for side in (key_cache, value_cache))
            else:
                key_memory, value_memory = view.scratch(key_cache)
                keys, values = _gather(key_cache, group, key_memory), _gather(value_cache, group, value_memory)
            _attend(output, query, keys, values, group, scale, cap, sinks)
        return output

    def attention_with_logsumexp(
        self, query: Tensor, key: CacheSide, value: CacheSide, metadata: AttentionMetadata, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Ragged or paged attention that also returns the log-sum-exp of each query's scores.

        query: [tokens, heads, head_dim].
        key, value: [key tokens, kv_heads, head_dim]; or a paged cache, [blocks, block_size, kv_heads, head_dim], if
            `metadata` has block tables.
        Returns the attention output, [tokens, heads, head_dim], and the log-sum-exp, [tokens, heads], float32.
        """
        output, sums = torch.empty_like(query), query.new_empty(query.shape[:2], dtype=torch.float32)
        view = metadata.view(TorchAttentionView, query.device, query.dtype)
        for group in view.groups:
            if isinstance(key, RoundedSlots) or isinstance(value, RoundedSlots):
                keys, values = (_gather_int8(side, group, query.dtype) for side in (key, value))
            elif metadata.block_tables is None:
                keys, values = (_by_row(side[group.keys], group.rows) for side in (key, value))
            else:
                key_memory, value_memory = view.scratch(key)
                keys, values = _gather(key, group, key_memory), _gather(value, group, value_memory)
            queries = _by_row(query[group.queries], group.rows)
            queries, keys, values = (side.transpose(1, 2) for side in (queries, keys, values))
            scores = _scores(queries, keys, group, scale, None)
            attended = _weighted(scores.softmax(-1), values)
            output[group.queries] = attended.transpose(1, 2).flatten(0, 1)
            sums[group.queries] = scores.logsumexp(-1).transpose(1, 2).flatten(0, 1)
        return output, sums

    def block_attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        """Attention of blocks of queries. Each block has separate keys and values.

        query: [blocks, size, heads, head_dim]. key, value: [blocks, key_len, kv_heads, head_dim].
        mask: added to the scores, broadcastable to [blocks, heads, size, key_len], or None. Each query must see at
            least one key.
        Returns a tensor like the query.
        """
        attended = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=mask,
            scale=scale,
            enable_gqa=query.shape[2] != key.shape[2],
        )
        return attended.transpose(1, 2)

    def disentangled_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        position_key: Tensor | None,
        position_query: Tensor | None,
        metadata: AttentionMetadata,
        scale: float,
    ) -> Tensor:
        """Self-attention of ragged sequences with scores that depend on distances.

        The score of query i and key j is `query_i · key_j + query_i · position_key[d] + key_j · position_query[d]`,
        scaled, where d is the row of distance `i - j`.

        query, key, value: [tokens, heads, head_dim].
        position_key, position_query: [rows, heads, head_dim]: projections of `metadata.distances.vectors`. None leaves
            out the term.
        Returns [tokens, heads, head_dim]. Source: He et al. 2021, arXiv:2006.03654, section 3.1.
        """
        return disentangled_attention(query, key, value, position_key, position_query, metadata, scale)


def _gather(cache: Tensor, group: RowGroup, memory: Tensor) -> Tensor:
    """Copy the cache blocks of a group's rows to `memory`. Returns [rows, key_len, kv_heads, head_dim]."""
    assert isinstance(group.keys, Tensor)
    blocks = group.keys.flatten()
    gathered = memory[: len(blocks)]
    torch.index_select(cache, 0, blocks, out=gathered)
    return gathered.view(group.rows, -1, *cache.shape[2:])[:, : group.key_len]


def _gather_int8(cache: CacheSide, group: RowGroup, dtype: torch.dtype) -> Tensor:
    """Gather the keys or the values of a `RowGroup` from a paged int8 or fp8 cache, dequantised to `dtype`.

    cache: the keys or the values of one layer, RoundedSlots.
    Returns [rows, key_len, kv_heads, head_dim].
    """
    assert isinstance(group.keys, Tensor) and isinstance(cache, RoundedSlots)
    blocks = cache.blocks(group.keys.flatten(), dtype)
    return blocks.view(group.rows, -1, *blocks.shape[2:])[:, : group.key_len]


def _by_row(x: Tensor, rows: int) -> Tensor:
    """Separate the rows of a group: [rows * length, ...] -> [rows, length, ...]."""
    return x.view(rows, -1, *x.shape[1:])


def _attend(
    output: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    group: RowGroup,
    scale: float,
    cap: float | None,
    sinks: Tensor | None,
) -> None:
    """Compute one group and write its rows to `output`. keys, values: [rows, key_len, kv_heads, head_dim]."""
    sides = (_by_row(query[group.queries], group.rows), keys, values)
    queries, keys, values = (side.transpose(1, 2) for side in sides)
    if cap is None and sinks is None:
        attended = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            # A score bias has the model's dtype, but queries of an int8 model are bfloat16.
            attn_mask=None if group.mask is None else group.mask.to(query.dtype),
            is_causal=group.is_causal,
            scale=scale,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )
    else:
        attended = _with_float32_softmax(queries, keys, values, group, scale, cap, sinks)
    output[group.queries] = attended.transpose(1, 2).flatten(0, 1)


def _with_float32_softmax(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    group: RowGroup,
    scale: float,
    cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention with capped scores or with sinks.

    queries: [rows, heads, query_len, head_dim]. keys, values: [rows, kv_heads, key_len, head_dim].
    Returns a tensor like the queries.
    """
    scores = _scores(queries, keys, group, scale, cap)
    if sinks is None:
        probabilities = scores.softmax(-1)
    else:
        columns = sinks[:, None, None].expand(*scores.shape[:-1], 1)
        probabilities = torch.cat([scores, columns], -1).softmax(-1)[..., :-1]
    return _weighted(probabilities, values)


def _scores(queries: Tensor, keys: Tensor, group: RowGroup, scale: float, cap: float | None) -> Tensor:
    """Masked scores: [rows, heads, query_len, key_len], float32. Arguments as for `_with_float32_softmax`."""
    rows, kv_heads = keys.shape[:2]
    shared = queries.reshape(rows, kv_heads, -1, group.query_len, keys.shape[3])
    scores = (shared @ keys[:, :, None].transpose(-1, -2)).flatten(1, 2).float() * scale
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if group.mask is not None:
        scores = scores + group.mask
    if group.is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores


def _weighted(probabilities: Tensor, values: Tensor) -> Tensor:
    """Result of attention: for each query and head, the sum of the values weighted by their probabilities.

    probabilities: [rows, heads, query_len, key_len]. values: [rows, kv_heads, key_len, dim].
    Returns [rows, heads, query_len, dim].
    """
    rows, kv_heads, key_len, _ = values.shape
    shared = probabilities.to(values.dtype).reshape(rows, kv_heads, -1, probabilities.shape[2], key_len)
    return (shared @ values[:, :, None]).flatten(1, 2)
