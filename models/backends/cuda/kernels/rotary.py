"""Rotary position embedding, and the write of keys and values to a paged cache."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.launch import kernel, power_of_two, warps

_HEADS = 4
"""Number of heads that a program rotates or stores."""


class RotaryTables(NamedTuple):
    """Cosines and sines of the rotation angles of a step's tokens.

    cos, sin: [positions, dim / 2] or [positions, 1, dim / 2], float32, contiguous. Only the first `dim` dimensions of a
        head are rotated.
    positions: [tokens], int64 or int32: row of each token in the tables. None if token i has row i.
    interleaved: the rotated pairs of dimensions are (0, 1), (2, 3)... Otherwise they are (0, dim / 2),
        (1, dim / 2 + 1)...
    """

    cos: Tensor
    sin: Tensor
    positions: Tensor | None
    interleaved: bool

    def constants(self, head_dim: int) -> dict[str, Any]:
        """Constants and launch options of a kernel, by name."""
        dim = 2 * self.cos.shape[-1]
        return {
            "HEAD_DIM": head_dim,
            "DIM": dim,
            "HALF_TILE": power_of_two(max(1, dim // 2)),
            "REST_TILE": power_of_two(max(1, head_dim - dim)),
            "INTERLEAVED": self.interleaved,
            "HAS_POSITIONS": self.positions is not None,
            "TILE": _HEADS,
            "num_warps": warps(_HEADS * head_dim),
            "enable_fp_fusion": True,
        }


def rotate(x: Tensor, tables: RotaryTables) -> Tensor:
    """Rotate query or key heads by their positions, in float32.

    x: [tokens, heads, head_dim], model dtype; the last dimension contiguous, tokens and heads with any stride.
    Returns a new contiguous tensor like x. Source: Su et al. 2021, arXiv:2104.09864, section 3.4.2.
    """
    (tokens, heads, head_dim), out = x.shape, x.new_empty(x.shape)
    assert tokens == 0 or 2 * tables.cos.shape[-1] <= head_dim, (tables.cos.shape, head_dim)
    if tokens and heads:
        _rotate_kernel[tokens, -(-heads // _HEADS)](
            x,
            out,
            tables.cos,
            tables.sin,
            x if tables.positions is None else tables.positions,
            *x.stride()[:2],
            heads,
            **tables.constants(head_dim),
        )
    return out


def rotate_and_store(
    x: Tensor, value: Tensor, tables: RotaryTables, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> Tensor:
    """Rotate queries and keys like `rotate`, and store the keys and the values like `write_slots`.

    x: [tokens, heads + kv_heads, head_dim]: queries, then keys. value: [tokens, kv_heads, value_dim]. The last
        dimension of both is contiguous; tokens and heads have any stride.
    key_cache, value_cache: [blocks, block_size, kv_heads, head_dim or value_dim], contiguous.
    slots: [tokens], int64: `block * block_size + offset`. A token with a negative slot is not stored.
    Returns the rotated queries, [tokens, heads, head_dim], contiguous.
    """
    (tokens, both, head_dim), (_, kv_heads, value_dim) = x.shape, value.shape
    heads = both - kv_heads
    out = x.new_empty(tokens, heads, head_dim)
    if tokens:
        query_parts, key_parts = (-(-count // _HEADS) for count in (heads, kv_heads))
        _rotate_and_store_kernel[tokens, query_parts + 2 * key_parts](
            x,
            value,
            out,
            key_cache,
            value_cache,
            slots,
            tables.cos,
            tables.sin,
            slots if tables.positions is None else tables.positions,
            *x.stride()[:2],
            *value.stride()[:2],
            heads,
            kv_heads,
            VALUE_DIM=value_dim,
            VALUE_TILE=power_of_two(value_dim),
            **tables.constants(head_dim),
        )
    return out


def write_slots(key_cache: Tensor, value_cache: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Store new keys and values in a paged cache.

    key_cache: [blocks, block_size, kv_heads, key_dim], contiguous. value_cache: likewise with value_dim.
    slots: [tokens], int64: `block * block_size + offset`. A token with a negative slot is not stored.
    key: [tokens, kv_heads, key_dim]. value: [tokens, kv_heads, value_dim]. Tokens and heads have any stride.
    """
    (tokens, heads, key_dim), value_dim = key.shape, value.shape[2]
    if tokens and heads:
        _write_kernel[tokens, -(-heads // _HEADS), 2](
            key,
            value,
            key_cache,
            value_cache,
            slots,
            *key.stride()[:2],
            *value.stride()[:2],
            heads,
            KEY_DIM=key_dim,
            VALUE_DIM=value_dim,
            KEY_TILE=power_of_two(key_dim),
            VALUE_TILE=power_of_two(value_dim),
            TILE=_HEADS,
            num_warps=warps(_HEADS * max(key_dim, value_dim)),
            enable_fp_fusion=True,
        )


@triton.jit
def _rotate_heads(
    source,
    target,
    heads,
    num_heads,
    source_head,
    cos,
    sin,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    HALF_TILE: tl.constexpr,
    REST_TILE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Rotate some heads of one token.

    source, target: addresses of the token. cos, sin: addresses of its cosines and sines.
    """
    is_head = (heads < num_heads)[:, None]
    source += heads[:, None] * source_head
    target += heads[:, None] * HEAD_DIM
    dtype = target.dtype.element_ty
    if DIM > 0:
        pairs = tl.arange(0, HALF_TILE)
        inside = is_head & (pairs < DIM // 2)[None, :]
        c = tl.load(cos + pairs, mask=pairs < DIM // 2, other=0.0)[None, :]
        s = tl.load(sin + pairs, mask=pairs < DIM // 2, other=0.0)[None, :]
        if INTERLEAVED:
            first, second = pairs * 2, pairs * 2 + 1
        else:
            first, second = pairs, pairs + DIM // 2
        one = tl.load(source + first[None, :], mask=inside, other=0.0).to(tl.float32)
        two = tl.load(source + second[None, :], mask=inside, other=0.0).to(tl.float32)
        tl.store(target + first[None, :], (one * c - two * s).to(dtype), mask=inside)
        tl.store(target + second[None, :], (two * c + one * s).to(dtype), mask=inside)
    if DIM < HEAD_DIM:
        rest = DIM + tl.arange(0, REST_TILE)
        inside = is_head & (rest < HEAD_DIM)[None, :]
        kept = tl.load(source + rest[None, :], mask=inside, other=0.0)
        tl.store(target + rest[None, :], kept, mask=inside)


@kernel(do_not_specialize=["positions"])
def _rotate_kernel(
    x,
    out,
    cos,
    sin,
    positions,
    x_token,
    x_head,
    num_heads,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    HALF_TILE: tl.constexpr,
    REST_TILE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_POSITIONS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Rotate some heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * TILE + tl.arange(0, TILE)
    angle = token
    if HAS_POSITIONS:
        angle = tl.load(positions + token).to(tl.int64)
    angle *= DIM // 2
    source, target = x + token * x_token, out + token * num_heads * HEAD_DIM
    _rotate_heads(
        source, target, heads, num_heads, x_head, cos + angle, sin + angle, HEAD_DIM, DIM, HALF_TILE, REST_TILE,
        INTERLEAVED,
    )  # fmt: skip


@kernel(do_not_specialize=["slots", "positions"])
def _rotate_and_store_kernel(
    x,
    value,
    out,
    key_cache,
    value_cache,
    slots,
    cos,
    sin,
    positions,
    x_token,
    x_head,
    value_token,
    value_head,
    num_heads,
    num_kv_heads,
    VALUE_DIM: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    HALF_TILE: tl.constexpr,
    REST_TILE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_POSITIONS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Process some heads of one token: rotate queries, rotate and store keys, or store values."""
    token = tl.program_id(0).to(tl.int64)
    query_parts = tl.cdiv(num_heads, TILE)
    key_parts = tl.cdiv(num_kv_heads, TILE)
    part = tl.program_id(1)
    angle = token
    if HAS_POSITIONS:
        angle = tl.load(positions + token).to(tl.int64)
    angle *= DIM // 2
    slot = tl.load(slots + token).to(tl.int64)
    source = x + token * x_token
    if part < query_parts:
        heads = part * TILE + tl.arange(0, TILE)
        target = out + token * num_heads * HEAD_DIM
        _rotate_heads(
            source, target, heads, num_heads, x_head, cos + angle, sin + angle, HEAD_DIM, DIM, HALF_TILE, REST_TILE,
            INTERLEAVED,
        )  # fmt: skip
    elif (slot >= 0) & (part < query_parts + key_parts):
        heads = (part - query_parts) * TILE + tl.arange(0, TILE)
        target = key_cache + slot * num_kv_heads * HEAD_DIM
        _rotate_heads(
            source + num_heads * x_head, target, heads, num_kv_heads, x_head, cos + angle, sin + angle, HEAD_DIM, DIM,
            HALF_TILE, REST_TILE, INTERLEAVED,
        )  # fmt: skip
    elif slot >= 0:
        heads = (part - query_parts - key_parts) * TILE + tl.arange(0, TILE)
        target = value_cache + slot * num_kv_heads * VALUE_DIM
        _store_heads(value + token * value_token, target, heads, num_kv_heads, value_head, VALUE_DIM, VALUE_TILE)


@triton.jit
def _store_heads(source, target, heads, num_heads, source_head, WIDTH: tl.constexpr, WIDTH_TILE: tl.constexpr):
    """Copy some heads of one token. source, target: addresses of the token."""
    places = tl.arange(0, WIDTH_TILE)[None, :]
    inside = (heads < num_heads)[:, None] & (places < WIDTH)
    kept = tl.load(source + heads[:, None] * source_head + places, mask=inside, other=0.0)
    tl.store(target + heads[:, None] * WIDTH + places, kept.to(target.dtype.element_ty), mask=inside)


@kernel(do_not_specialize=["slots"])
def _write_kernel(
    key,
    value,
    key_cache,
    value_cache,
    slots,
    key_token,
    key_head,
    value_token,
    value_head,
    num_heads,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_TILE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Store a tile of heads of one token: of its key, or of its value."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_value = tl.program_id(2) == 1
    slot = tl.load(slots + token).to(tl.int64)
    if (slot >= 0) & (not is_value):
        row = slot * num_heads * KEY_DIM
        _store_heads(key + token * key_token, key_cache + row, heads, num_heads, key_head, KEY_DIM, KEY_TILE)
    if (slot >= 0) & is_value:
        row = slot * num_heads * VALUE_DIM
        _store_heads(
            value + token * value_token, value_cache + row, heads, num_heads, value_head, VALUE_DIM, VALUE_TILE
        )
