"""Rotary position embedding, and the write of keys and values to a paged cache."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.launch import power_of_two, warps

_HEADS = 4
"""Heads that a program rotates."""


def rotate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, interleaved: bool) -> Tensor:
    """Rotate query or key heads by their positions, in float32.

    x: [tokens, heads, head_dim], model dtype; the last dimension contiguous, tokens and heads with any stride.
    cos, sin: [positions, dim / 2] or [positions, 1, dim / 2], float32, contiguous, dim <= head_dim. Dimensions from dim
        on do not change.
    positions: [tokens], int64 or int32, row of each token in the tables; None where token i has row i.
    interleaved: pairs are (0, 1), (2, 3)..., else (0, dim / 2), (1, dim / 2 + 1)...
    Returns a new contiguous tensor like x. Source: Su et al. 2021, arXiv:2104.09864, section 3.4.2.
    """
    out = x.new_empty(x.shape)
    _launch(x, None, None, out, None, None, cos, sin, positions, interleaved, None)
    return out


def write_slots(key_cache: Tensor, value_cache: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Store new keys and values in a paged cache.

    key_cache: [blocks, block_size, kv_heads, key_dim], contiguous. value_cache: likewise with value_dim.
    slots: [tokens], int64: `block * block_size + offset`. A token with a negative slot is not stored.
    key: [tokens, kv_heads, key_dim]. value: [tokens, kv_heads, value_dim]. Tokens and heads with any stride.
    """
    _launch(None, key, value, None, key_cache, value_cache, None, None, None, False, slots)


def rotate_and_write(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    interleaved: bool,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
) -> Tensor:
    """Rotate queries and keys, and store rotated keys and values in a paged cache, in one kernel.

    query: [tokens, heads, head_dim]. key, value: [tokens, kv_heads, ...]. They may be views of one merged product.
    The other arguments as for `rotate` and `write_slots`.
    Returns the rotated queries, contiguous.
    """
    out = query.new_empty(query.shape)
    _launch(query, key, value, out, key_cache, value_cache, cos, sin, positions, interleaved, slots)
    return out


def _launch(
    query: Tensor | None,
    key: Tensor | None,
    value: Tensor | None,
    out: Tensor | None,
    key_cache: Tensor | None,
    value_cache: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    positions: Tensor | None,
    interleaved: bool,
    slots: Tensor | None,
) -> None:
    """Process queries, or keys and values, or all of them. What is not processed is None."""
    some = query if query is not None else key
    assert some is not None
    # Kernels take no None for a pointer: an argument that is not read is any tensor.
    given_query, given_key, given_value = (some if x is None else x for x in (query, key, value))
    heads, kv_heads = 0 if query is None else query.shape[1], 0 if key is None else key.shape[1]
    head_dim, value_dim = some.shape[2], given_value.shape[2]
    dim = 0 if cos is None else 2 * cos.shape[-1]
    assert len(some) == 0 or dim <= head_dim
    grid = (len(some), -(-heads // _HEADS) + 2 * -(-kv_heads // _HEADS))
    if 0 in grid:
        return
    _rotate_kernel[grid](
        given_query,
        given_key,
        given_value,
        some if out is None else out,
        some if key_cache is None else key_cache,
        some if value_cache is None else value_cache,
        some if cos is None else cos,
        some if sin is None else sin,
        some if positions is None else positions,
        some if slots is None else slots,
        *given_query.stride()[:2],
        *given_key.stride()[:2],
        *given_value.stride()[:2],
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        VALUE_DIM=value_dim,
        DIM=dim,
        HALF_TILE=power_of_two(max(1, dim // 2)),
        REST_TILE=power_of_two(max(1, head_dim - dim)),
        VALUE_TILE=power_of_two(value_dim),
        INTERLEAVED=interleaved,
        HAS_POSITIONS=positions is not None,
        TILE=_HEADS,
        num_warps=warps(_HEADS * max(head_dim, value_dim)),
        enable_fp_fusion=True,
    )


@triton.jit
def _rotate_heads(
    source,
    target,
    heads,
    is_head,
    source_head,
    cos,
    sin,
    angle,
    WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    HALF_TILE: tl.constexpr,
    REST_TILE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Rotate some heads of one token. source, target: addresses of the token. angle: its row in the tables."""
    dtype = target.dtype.element_ty
    if DIM > 0:
        pairs = tl.arange(0, HALF_TILE)
        inside = is_head[:, None] & (pairs < DIM // 2)[None, :]
        c = tl.load(cos + angle * (DIM // 2) + pairs, mask=pairs < DIM // 2, other=0.0)[None, :]
        s = tl.load(sin + angle * (DIM // 2) + pairs, mask=pairs < DIM // 2, other=0.0)[None, :]
        if INTERLEAVED:
            first, second = pairs * 2, pairs * 2 + 1
        else:
            first, second = pairs, pairs + DIM // 2
        one = tl.load(source + heads[:, None] * source_head + first[None, :], mask=inside, other=0.0).to(tl.float32)
        two = tl.load(source + heads[:, None] * source_head + second[None, :], mask=inside, other=0.0).to(tl.float32)
        tl.store(target + heads[:, None] * WIDTH + first[None, :], (one * c - two * s).to(dtype), mask=inside)
        tl.store(target + heads[:, None] * WIDTH + second[None, :], (two * c + one * s).to(dtype), mask=inside)
    if DIM < WIDTH:
        rest = DIM + tl.arange(0, REST_TILE)
        inside = is_head[:, None] & (rest < WIDTH)[None, :]
        kept = tl.load(source + heads[:, None] * source_head + rest[None, :], mask=inside, other=0.0)
        tl.store(target + heads[:, None] * WIDTH + rest[None, :], kept.to(dtype), mask=inside)


@triton.jit(do_not_specialize=["positions", "slots"])
def _rotate_kernel(
    query,
    key,
    value,
    out,
    key_cache,
    value_cache,
    cos,
    sin,
    positions,
    slots,
    query_token,
    query_head,
    key_token,
    key_head,
    value_token,
    value_head,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    DIM: tl.constexpr,
    HALF_TILE: tl.constexpr,
    REST_TILE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_POSITIONS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Some heads of one token: of the query, then of the key, then of the value."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    QUERY_PARTS: tl.constexpr = (HEADS + TILE - 1) // TILE
    KEY_PARTS: tl.constexpr = (KV_HEADS + TILE - 1) // TILE
    angle = token
    if HAS_POSITIONS:
        angle = tl.load(positions + token).to(tl.int64)
    members = tl.arange(0, TILE)
    if part < QUERY_PARTS:
        heads = part * TILE + members
        _rotate_heads(
            query + token * query_token,
            out + token * HEADS * HEAD_DIM,
            heads,
            heads < HEADS,
            query_head,
            cos,
            sin,
            angle,
            HEAD_DIM,
            DIM,
            HALF_TILE,
            REST_TILE,
            INTERLEAVED,
        )
    if part >= QUERY_PARTS:
        slot = tl.load(slots + token).to(tl.int64)
        is_value = part >= QUERY_PARTS + KEY_PARTS
        if (slot >= 0) & (not is_value):
            heads = (part - QUERY_PARTS) * TILE + members
            _rotate_heads(
                key + token * key_token,
                key_cache + slot * KV_HEADS * HEAD_DIM,
                heads,
                heads < KV_HEADS,
                key_head,
                cos,
                sin,
                angle,
                HEAD_DIM,
                DIM,
                HALF_TILE,
                REST_TILE,
                INTERLEAVED,
            )
        if (slot >= 0) & is_value:
            heads = (part - QUERY_PARTS - KEY_PARTS) * TILE + members
            _rotate_heads(
                value + token * value_token,
                value_cache + slot * KV_HEADS * VALUE_DIM,
                heads,
                heads < KV_HEADS,
                value_head,
                cos,
                sin,
                angle,
                VALUE_DIM,
                0,
                HALF_TILE,
                VALUE_TILE,
                INTERLEAVED,
            )
