"""The reference implementation of every hot operation, in plain torch: any device, any float dtype."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor
from torch.nn import functional as F

from models.attention_metadata import AttentionPlan, Group
from models.config import Activation
from models.layers.activations import ACTIVATIONS


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


def rms_norm_from_one(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same with weights that are one plus `weight`, in float32 to the end."""
    return rms_norm(x.float(), 1.0 + weight.float(), eps).to(x.dtype)


def sum_of_rows(
    parts: Sequence[tuple[Tensor | None, Tensor]], scale: float = 1.0, onto: Tensor | None = None
) -> Tensor:
    """Rows of tables, added up from the first table on: one to three (index [rows], int64, or None; table [count,
    width]) -> [rows, width], one dtype.

    No index: every row takes the table's first. onto: [rows, width], what the sum begins with; else it is the first
    table's rows times `scale`, which then has an index. Raises IndexError.
    """
    found = [table[0] if index is None else F.embedding(index, table) for index, table in parts]
    if onto is None:
        onto, *found = found
        onto = onto if scale == 1.0 else onto * scale
    for rows in found:
        onto = onto + rows
    return onto


def means_of_spans(x: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    """The mean of each span of rows, every one by itself. x: [rows, width] -> [spans, width], float32.

    spans: first row and the end, at least one row each.
    """
    return torch.stack([x[first:end].float().mean(0) for first, end in spans])


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """x: [rows, ...], index: [n], int64 -> [n, ...], contiguous."""
    return x[index]


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


def write_slots(key_cache: Tensor, value_cache: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Store new keys and values.

    key_cache, value_cache: [blocks, block_size, kv_heads, head_dim]. slots: [tokens], int64, over all blocks.
    key, value: [tokens, kv_heads, head_dim].
    """
    key_cache.flatten(0, 1).index_copy_(0, slots, key)
    value_cache.flatten(0, 1).index_copy_(0, slots, value)


def copy_blocks(caches: Sequence[Tensor], copies: Sequence[tuple[int, int, int, int]]) -> None:
    """Copy (source, destination, first, end): at least these slots of a block, in each cache; others may be copied too.

    caches: [blocks, block_size, kv_heads, head_dim] each, of one number of blocks. No destination is a source.
    """
    source, destination = torch.tensor(copies, device=caches[0].device)[:, :2].unbind(1)
    for cache in caches:
        cache[destination] = cache[source]


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
            # Of a dtype of its own in a model in int8, which not every device takes.
            attn_mask=None if group.mask is None else group.mask.to(query.dtype),
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


class Int8Linear:
    """`x W^T + b` with int8 weights, a scale for each output channel, and a scale for each row of x; sums are exact.

    weight: [out, in], any float dtype; bias: [out] or None. writes: the dtype of the result, the weight's where None.
    Source: Dettmers et al. 2022, arXiv:2208.07339, section 2 (vector-wise quantisation).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, writes: torch.dtype | None = None) -> None:
        self.weight, self.scales = quantize_int8(weight)
        self.dtype, self.writes = weight.dtype, writes or weight.dtype
        self.bias = None if bias is None else bias.float()
        self.nbytes = sum(x.nbytes for x in (self.weight, self.scales, self.bias) if x is not None)

    def part(self, first: int, end: int) -> Int8Linear | None:
        """See `PackedWeight`."""
        found = copy(self)
        found.weight, found.scales = self.weight[first:end], self.scales[first:end]
        found.bias = None if self.bias is None else self.bias[first:end]
        return found

    def __call__(
        self,
        x: Tensor,
        activation: Activation | None = None,
        times: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """[rows, in], any float dtype -> [rows, out]: the activation of the product, or the product times another.

        out: see `PackedWeight`.
        """
        rounded, row_scales = quantize_int8(x)
        # Whole numbers of this size are exact in float64, whatever the order of the sum.
        sums = (rounded.double() @ self.weight.double().T).float()
        y = sums * (self.scales * row_scales[:, None])
        y = (y if self.bias is None else y + self.bias).to(self.writes)
        if activation is not None:
            y = ACTIVATIONS[activation](y)
        y = y if times is None else y * times
        return y if out is None else out[: len(y)].copy_(y)

    def rows(self, index: Tensor) -> Tensor:
        """Rows of the weight as they are multiplied, for a table of embeddings that is tied to it. index: [n], int64
        -> [n, in], the dtype that the weight had. Raises IndexError."""
        return (self.weight.index_select(0, index).float() * self.scales[index, None]).to(self.dtype)


ROUNDED_TOGETHER = 1 << 17
"""Numbers that are rounded at a time: what lies between the passes stays in the cache, and in memory that is there."""


def quantize_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row to 255 steps of a size of its own. x: [rows, width] -> int8 of that shape, and steps [rows],
    float32, not finite where the row is not."""
    rounded, scales = x.new_empty(x.shape, dtype=torch.int8), x.new_empty(len(x), dtype=torch.float32)
    rows = max(1, ROUNDED_TOGETHER // x.shape[1])
    for first in range(0, len(x), rows):
        part = slice(first, first + rows)
        rounded[part], scales[part] = _rounded(x[part])
    return rounded, scales


def _rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.float()
    scales = wide.abs().amax(1) / 127
    scales = torch.where(scales == 0, 1.0, scales)
    # Times one over it, as the kernels have it: a quotient rounds to the other side now and then.
    return (wide * (1 / scales)[:, None]).round().clamp(-127, 127).nan_to_num().to(torch.int8), scales
