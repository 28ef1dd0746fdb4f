"""The reference implementation of the operations, in plain torch: any device, any float dtype.

`models/backends/interface.py` documents the operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from models.backends.attention_metadata import AttentionMetadata
from models.backends.int8_slots import CacheSide, Int8Slots
from models.backends.operands import CacheSlots, RotaryAngles, XieluShape
from models.backends.torch.activations import activate, by_rows
from models.backends.torch.attention_view import Group, TorchAttentionView
from models.config import Activation, RouterConfig


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def rms_norm_from_one(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm(x.float(), 1.0 + weight.float(), eps).to(x.dtype)


def add_rms_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + y
    return total, rms_norm(total, weight, eps)


def add_rms_norm_from_one(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + y
    return total, rms_norm_from_one(total, weight, eps)


def add_layer_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    total = x + y
    return total, layer_norm(total, weight, bias, eps)


def sum_of_rows(
    lookups: Sequence[tuple[Tensor | None, Tensor]], scale: float = 1.0, onto: Tensor | None = None
) -> Tensor:
    summands = [table[0] if index is None else F.embedding(index, table) for index, table in lookups]
    if onto is None:
        onto, *summands = summands
        onto = onto if scale == 1.0 else onto * scale
    for rows in summands:
        onto = onto + rows
    return onto


def means_of_spans(x: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    return torch.stack([x[first:end].float().mean(0) for first, end in spans])


def scale_by_row(x: Tensor, factors: Tensor) -> Tensor:
    return (x.float() * factors.view(-1, *(1,) * (x.dim() - 1))).to(x.dtype)


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    return x[index]


def route(logits: Tensor, choices: int, config: RouterConfig, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    logits = logits.float()
    not_finite = (logits - logits).sum(-1, keepdim=True)
    if config.score == "sparse_mixer":
        shares, experts = _mix_sparsely(logits, choices, config.tolerance)
    else:
        scores = torch.sigmoid(logits) if config.score == "sigmoid" else torch.softmax(logits, dim=-1)
        keys = logits if config.chooses_by_logits else scores
        if correction is not None:
            keys = scores + correction.float()
        if config.groups > 1:
            keys = _in_best_groups(keys, config)
        experts = _best(keys, choices)
        shares = scores.gather(1, experts)
        if config.normalized:
            shares = shares / (shares.sum(-1, keepdim=True) + config.epsilon)
    return shares * config.scale + not_finite, experts


def _best(keys: Tensor, count: int) -> Tensor:
    """Indices of the largest keys of each row, the first ones among equal keys: [rows, n] -> [rows, count]."""
    return keys.sort(dim=-1, descending=True, stable=True).indices[:, :count].contiguous()


def _in_best_groups(keys: Tensor, config: RouterConfig) -> Tensor:
    """Set the selection scores of experts outside the best groups to -inf. keys: [tokens, experts], like the result."""
    by_group = keys.view(len(keys), config.groups, -1)
    group_keys = by_group.sort(dim=-1, descending=True).values[..., : config.group_members].sum(-1)
    hidden = torch.ones_like(group_keys, dtype=torch.bool)
    hidden.scatter_(1, _best(group_keys, config.groups_per_token), False)
    return by_group.masked_fill(hidden[..., None], -torch.inf).flatten(1)


def _mix_sparsely(logits: Tensor, choices: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """Shares and experts of a sparse mixer, see `RouterConfig`. logits: [tokens, experts], float32."""
    left, experts, shares = logits, _best(logits, choices), []
    for expert in torch.split(experts, 1, dim=1):
        largest = logits.gather(1, expert)
        is_far = (largest - left) / left.abs().clamp(min=largest) > 2 * tolerance
        shares.append(left.masked_fill(is_far, -torch.inf).softmax(-1).gather(1, expert))
        left = left.scatter(1, expert, -torch.inf)
    return torch.cat(shares, dim=1), experts


def xielu(x: Tensor, shape: XieluShape) -> Tensor:
    wide = x.float()
    curve = torch.where(
        wide > 0,
        shape.alpha_p * wide * wide,
        shape.alpha_n * (by_rows(torch.expm1, wide.clamp(max=shape.eps)) - wide),
    )
    return (curve + shape.beta * wide).to(x.dtype)


def rotate(x: Tensor, angles: RotaryAngles, interleaved: bool) -> Tensor:
    cos, sin = angles.cos, angles.sin
    dim = 2 * cos.shape[-1]
    rotated, rest = x[..., :dim].float(), x[..., dim:]
    first, second = (rotated[..., ::2], rotated[..., 1::2]) if interleaved else rotated.chunk(2, -1)
    pair = (first * cos - second * sin, second * cos + first * sin)
    rotated = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([rotated.to(x.dtype), rest], -1) if rest.shape[-1] else rotated.to(x.dtype)


def rotate_and_store(x: Tensor, value: Tensor, angles: RotaryAngles, interleaved: bool, store: CacheSlots) -> Tensor:
    heads, rotated = x.shape[1] - value.shape[1], rotate(x, angles, interleaved)
    write_slots(store.keys, store.values, store.slots, rotated[:, heads:], value)
    return rotated[:, :heads]


def gated_activation(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    return activate(gate, activation) * up


def write_slots(key_cache: CacheSide, value_cache: CacheSide, slots: Tensor, key: Tensor, value: Tensor) -> None:
    for cache, side in ((key_cache, key), (value_cache, value)):
        if isinstance(cache, Int8Slots):
            cache.write(slots, side)
        else:
            cache.flatten(0, 1).index_copy_(0, slots, side)


def copy_blocks(caches: Sequence[Tensor], copies: Sequence[tuple[int, int, int, int]]) -> None:
    source, destination = torch.tensor(copies)[:, :2].to(caches[0].device, non_blocking=True).unbind(1)
    for cache in caches:
        cache.index_copy_(0, destination, cache.index_select(0, source))


def ragged_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    output = torch.empty_like(query)
    for group in metadata.view(TorchAttentionView, query.device, query.dtype).groups:
        keys, values = (_by_row(side[group.keys], group.rows) for side in (key, value))
        _attend(output, query, keys, values, group, scale, cap, sinks)
    return output


def paged_attention(
    query: Tensor,
    key_cache: CacheSide,
    value_cache: CacheSide,
    metadata: AttentionMetadata,
    scale: float,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    output = torch.empty_like(query)
    view = metadata.view(TorchAttentionView, query.device, query.dtype)
    for group in view.groups:
        if isinstance(key_cache, Int8Slots) or isinstance(value_cache, Int8Slots):
            keys, values = (_gather_int8(side, group, query.dtype) for side in (key_cache, value_cache))
        else:
            key_memory, value_memory = view.scratch(key_cache)
            keys, values = _gather(key_cache, group, key_memory), _gather(value_cache, group, value_memory)
        _attend(output, query, keys, values, group, scale, cap, sinks)
    return output


def block_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    attended = F.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=mask,
        scale=scale,
        enable_gqa=query.shape[2] != key.shape[2],
    )
    return attended.transpose(1, 2)


def _gather(cache: Tensor, group: Group, memory: Tensor) -> Tensor:
    """Copy the blocks of a group to `memory`. Returns [rows, key_len, kv_heads, head_dim]."""
    assert isinstance(group.keys, Tensor)
    blocks = group.keys.flatten()
    gathered = memory[: len(blocks)]
    torch.index_select(cache, 0, blocks, out=gathered)
    return gathered.view(group.rows, -1, *cache.shape[2:])[:, : group.key_len]


def _gather_int8(cache: CacheSide, group: Group, dtype: torch.dtype) -> Tensor:
    """Keys or values of the blocks of a group, dequantised to `dtype`: [rows, key_len, kv_heads, head_dim]."""
    assert isinstance(group.keys, Tensor) and isinstance(cache, Int8Slots)
    blocks = cache.blocks(group.keys.flatten(), dtype)
    return blocks.view(group.rows, -1, *blocks.shape[2:])[:, : group.key_len]


def _by_row(x: Tensor, rows: int) -> Tensor:
    """[rows * length, ...] -> [rows, length, ...]."""
    return x.view(rows, -1, *x.shape[1:])


def _attend(
    output: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    group: Group,
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
    group: Group,
    scale: float,
    cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention with capped scores or with sinks.

    queries: [rows, heads, query_len, head_dim]. keys, values: [rows, kv_heads, key_len, head_dim].
    Returns a tensor like the queries.
    """
    rows, kv_heads, _, head_dim = keys.shape
    shared = queries.reshape(rows, kv_heads, -1, group.query_len, head_dim)
    scores = (shared @ keys[:, :, None].transpose(-1, -2)).flatten(1, 2).float() * scale
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if group.mask is not None:
        scores = scores + group.mask
    if group.is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    if sinks is None:
        shares = scores.softmax(-1)
    else:
        columns = sinks[:, None, None].expand(*scores.shape[:-1], 1)
        shares = torch.cat([scores, columns], -1).softmax(-1)[..., :-1]
    shares = shares.to(values.dtype).reshape(rows, kv_heads, -1, group.query_len, keys.shape[2])
    return (shares @ values[:, :, None]).flatten(1, 2)
