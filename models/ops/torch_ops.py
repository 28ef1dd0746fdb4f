"""The reference implementation of every hot operation, in plain torch: any device, any float dtype."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from models.attention_plan import AttentionPlan, Group


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x W^T + b`. x: [..., in], weight: [out, in], bias: [out] -> [..., out]; one dtype."""
    return F.linear(x, weight, bias)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """x: [..., hidden], weight, bias: [hidden] -> [..., hidden]; one dtype."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x: [..., hidden], weight: [hidden] -> [..., hidden]. Normalised in float32, scaled in the dtype of x."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Turn pairs of dimensions by their angles, in float32; dimensions beyond the angles stay.

    x: [tokens, heads, head_dim], model dtype. cos, sin: [tokens, 1, dim / 2], float32, dim <= head_dim.
    interleaved: pairs are (0, 1), (2, 3)..., else (0, dim / 2), (1, dim / 2 + 1)...
    Source: Su et al. 2021, arXiv:2104.09864, section 3.4.2.
    """
    dim = 2 * cos.shape[-1]
    turning, staying = x[..., :dim].float(), x[..., dim:]
    first, second = (turning[..., ::2], turning[..., 1::2]) if interleaved else turning.chunk(2, -1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat([joined.to(x.dtype), staying], -1) if staying.shape[-1] else joined.to(x.dtype)


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scale: float, cap: float | None = None
) -> Tensor:
    """Attention among keys and values that are at hand, packed like the queries.

    query: [tokens, heads, head_dim]. key, value: [key tokens, kv_heads, head_dim]. -> [tokens, heads, head_dim].
    cap: of the scaled scores, `cap * tanh(score / cap)` before masks; or None.
    """
    output = torch.empty_like(query)
    for group in plan.groups:
        keys, values = (_by_row(side[group.keys], group.rows) for side in (key, value))
        _attend(output, query, keys, values, group, scale, cap)
    return output


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, plan: AttentionPlan, scale: float, cap: float | None = None
) -> Tensor:
    """Attention over keys and values in the blocks of a cache, the step's own ones included.

    query: [tokens, heads, head_dim]. key_cache, value_cache: [blocks, block_size, kv_heads, head_dim].
    -> [tokens, heads, head_dim]. Every slot of a row's blocks must hold finite numbers, also beyond its length.
    cap: as above.
    """
    output = torch.empty_like(query)
    key_room, value_room = plan.scratch(key_cache)
    for group in plan.groups:
        keys, values = _gather(key_cache, group, key_room), _gather(value_cache, group, value_room)
        _attend(output, query, keys, values, group, scale, cap)
    return output


def block_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention of blocks of queries, each over keys of its own.

    query: [blocks, size, heads, head_dim]. key, value: [blocks, key_len, kv_heads, head_dim]. -> like the query.
    mask: added to the scores, broadcastable to [blocks, heads, size, key_len], or None. No row hides every key.
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


def _gather(cache: Tensor, group: Group, room: Tensor) -> Tensor:
    """The blocks of a group, side by side in `room`. -> [rows, key_len, kv_heads, head_dim]."""
    assert isinstance(group.keys, Tensor)
    blocks = group.keys.flatten()
    gathered = room[: len(blocks)]
    torch.index_select(cache, 0, blocks, out=gathered)
    return gathered.view(group.rows, -1, *cache.shape[2:])[:, : group.key_len]


def _by_row(x: Tensor, rows: int) -> Tensor:
    """[rows * length, ...] -> [rows, length, ...]."""
    return x.view(rows, -1, *x.shape[1:])


def _attend(
    output: Tensor, query: Tensor, keys: Tensor, values: Tensor, group: Group, scale: float, cap: float | None
) -> None:
    """Write the rows of one group into the output. keys, values: [rows, key_len, kv_heads, head_dim]."""
    sides = (_by_row(query[group.queries], group.rows), keys, values)
    queries, keys, values = (side.transpose(1, 2) for side in sides)
    if cap is None:
        attended = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=group.mask,
            is_causal=group.is_causal,
            scale=scale,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )
    else:
        attended = _capped(queries, keys, values, group, scale, cap)
    output[group.queries] = attended.transpose(1, 2).flatten(0, 1)


def _capped(queries: Tensor, keys: Tensor, values: Tensor, group: Group, scale: float, cap: float) -> Tensor:
    """Attention with capped scores, softmax in float32. queries: [rows, heads, query_len, head_dim], keys, values:
    [rows, kv_heads, key_len, head_dim] -> like the queries."""
    rows, kv_heads, _, head_dim = keys.shape
    shared = queries.reshape(rows, kv_heads, -1, group.query_len, head_dim)
    scores = (shared @ keys[:, :, None].transpose(-1, -2)).flatten(1, 2).float() * scale
    scores = cap * torch.tanh(scores / cap)
    if group.mask is not None:
        scores = scores + group.mask
    if group.is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    shares = scores.softmax(-1).to(values.dtype).view(rows, kv_heads, -1, group.query_len, keys.shape[2])
    return (shares @ values[:, :, None]).flatten(1, 2)
