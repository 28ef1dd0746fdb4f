"""The reference implementation of disentangled attention, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from models.backends.attention_metadata import AttentionMetadata
from models.backends.torch.attention_view import TorchAttentionView


def disentangled_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position_key: Tensor | None,
    position_query: Tensor | None,
    metadata: AttentionMetadata,
    scale: float,
) -> Tensor:
    """Self-attention with scores that depend on distances, text by text.

    query, key, value: [tokens, heads, head_dim].
    position_key, position_query: [rows, heads, head_dim]: projections of the distance vectors. None leaves out a term.
    Returns [tokens, heads, head_dim]. `TorchAttention.disentangled_attention` has the formula.
    """
    assert metadata.distances is not None
    row_of = metadata.distances.row_of
    output = torch.empty_like(query)
    for group in metadata.view(TorchAttentionView, query.device, query.dtype).groups:
        # Texts are computed one by one, each with its own distances. Matrix products of other shapes round
        # differently, and a text's result must not depend on the other texts of the batch.
        length = group.query_len
        positions = torch.arange(length, device=query.device)
        within = row_of[len(row_of) // 2 - length + 1 : len(row_of) // 2 + length]
        first, last = int(within.min()), int(within.max()) + 1
        rows = (row_of[positions[:, None] - positions + len(row_of) // 2] - first).expand(query.shape[1], -1, -1)
        of_key, of_query = (None if side is None else side[first:last] for side in (position_key, position_query))
        queries, keys, values = (
            side[where].view(group.rows, length, *side.shape[1:]).transpose(1, 2).unbind()
            for side, where in ((query, group.queries), (key, group.keys), (value, group.keys))
        )
        attended = [
            _attend(its_queries, its_keys, its_values, of_key, of_query, rows, group.mask, scale)
            for its_queries, its_keys, its_values in zip(queries, keys, values, strict=True)
        ]
        output[group.queries] = torch.stack(attended).transpose(1, 2).flatten(0, 1)
    return output


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position_key: Tensor | None,
    position_query: Tensor | None,
    rows: Tensor,
    mask: Tensor | None,
    scale: float,
) -> Tensor:
    """Attention of one text.

    query, key, value: [heads, length, head_dim]. rows: [heads, length, length], row of each distance in `position_key`
        and `position_query`.
    """
    scores = torch.zeros((), dtype=query.dtype, device=query.device)
    if position_key is not None:
        scores = scores + ((query * scale) @ position_key.permute(1, 2, 0)).gather(-1, rows)
    if position_query is not None:
        by_key = key @ (position_query * scale).permute(1, 2, 0)
        scores = scores + by_key.gather(-1, rows.transpose(-1, -2)).transpose(-1, -2)
    if mask is not None:
        scores = scores + mask[0]
    return F.scaled_dot_product_attention(query[None], key[None], value[None], scores[None], scale=scale)[0]
