"""Attention of ragged rows of queries, for prefill and encoders, over ragged keys or a paged cache.

A program computes a tile of queries of one row and head. It loops over the visible keys in tiles, which begin at
multiples of the tile size, in ascending order. Tiles of keys that all its queries see need no mask. The bits of a
query's result depend on its position in its row, but neither on other rows nor on the other queries of its tile.
Source: Dao 2023, arXiv:2307.08691.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from models.backends.cuda.kernels.attention_arguments import Scores, capped, finite_maximum
from models.backends.cuda.kernels.codes import CODE_FACTOR, code_numbers
from models.backends.cuda.kernels.launch import is_float32, kernel, pipeline_stages, tile_width
from models.backends.cuda.kernels.rounded_cache import CacheCodes
from models.backends.rounded_slots import CacheSide

SPAN_QUERIES = 64
"""Queries of a span. A row is divided into spans, and a span into tiles. The size of a tile depends on the kernel."""
NO_QUERIES = 1 << 20
"""Index that marks the unused entries of a list of spans. It is larger than the index of any span with queries."""


class TileRows(NamedTuple):
    """The rows of a step, and where their queries and keys are.

    query_starts: [rows + 1], int32: index of each row's first query, and at the end the number of queries.
    key_lens: [rows], int32: number of keys of each row.
    first_positions: [rows], int32: position of each row's first query.
    spans: [spans, 2], int32, contiguous: row of each span of queries, and index of the span in its row, as
        `spans_of_queries` returns them. Spans are computed in this order. Queries without a span are not computed.
    key_starts: [rows], int32: index of each row's first ragged key; None for a paged cache.
    block_tables: [rows, blocks], int32 or int64: blocks of each row in a paged cache; None for ragged keys.
    """

    query_starts: Tensor
    key_lens: Tensor
    first_positions: Tensor
    spans: Tensor
    key_starts: Tensor | None = None
    block_tables: Tensor | None = None


def spans_of_queries(query_lens: NDArray[np.int64], key_lens: NDArray[np.int64]) -> NDArray[np.int64]:
    """All spans of the queries of a step, [spans, 2]: row, and index of the span in its row.

    Spans that see many keys come first, so that no long span is left when the others are done.

    query_lens: [rows], number of queries of each row. key_lens: [rows], number of keys of each row.
    """
    counts = -(-query_lens // SPAN_QUERIES)
    rows = np.arange(len(counts)).repeat(counts)
    numbers = np.arange(len(rows)) - (counts.cumsum() - counts)[rows]
    # If queries see no later keys, the last query of the last span of a row sees all keys.
    after = np.maximum(query_lens[rows] - (numbers + 1) * SPAN_QUERIES, 0)
    order = np.argsort(after - key_lens[rows], kind="stable")
    return np.stack([rows[order], numbers[order]], 1)


def max_spans(num_queries: int, num_rows: int) -> int:
    """Largest number of spans of a step with up to this many queries, and up to this many rows with queries."""
    return (num_queries + (SPAN_QUERIES - 1) * min(num_rows, num_queries)) // SPAN_QUERIES


def tile_attention(
    query: Tensor, key: CacheSide, value: CacheSide, rows: TileRows, scores: Scores, out: Tensor | None = None
) -> Tensor:
    """Attention of all queries of a step.

    query: [tokens, heads, key_dim], model dtype; the last dimension contiguous.
    key, value: [key tokens, kv_heads, key_dim or value_dim], ragged; or [blocks, block_size, kv_heads, key_dim or
        value_dim], a paged cache. Both have the dtype of the query, and the last dimension is contiguous. kv_heads
        divides heads. A cache of 8 bits is RoundedSlots.
    out: [tokens, heads, value_dim], contiguous: memory for the result; None for new memory.
    Returns [tokens, heads, value_dim]. A query that sees no key gives zeros, with and without sinks.
    """
    tokens, heads, key_dim = query.shape
    keys, values, key_scales, value_scales, codes = CacheCodes.of(key, value)
    kv_heads, value_dim = values.shape[-2:]
    num_spans = len(rows.spans)
    if out is None:
        out = query.new_empty(tokens, heads, value_dim)
    if num_spans == 0:
        return out
    is_paged = rows.block_tables is not None
    where = rows.block_tables if rows.block_tables is not None else rows.key_starts
    assert where is not None, "keys are ragged or paged"
    bias, bias_width = scores.bias_arguments(query)
    key_width = tile_width(key_dim)
    # Tiles of values with 16 columns beside wider tiles of keys gave wrong results on an H200 (Triton 3.6).
    value_width = max(tile_width(value_dim), min(key_width, 32))
    width = max(key_width, value_width)
    query_tile, key_tile, num_warps, num_stages = _tiles(width, query.dtype, is_paged, scores.bias is not None)
    parts = SPAN_QUERIES // query_tile
    _tiles_kernel[num_spans * parts, heads](
        query,
        keys,
        values,
        key_scales,
        value_scales,
        out,
        rows.spans,
        rows.query_starts,
        rows.key_lens,
        rows.first_positions,
        where,
        bias,
        query if scores.sinks is None else scores.sinks,
        scores.scale,
        bias_width,
        heads,
        where.stride(0),
        *query.stride()[:2],
        *(keys.stride()[:3] if is_paged else (0, *keys.stride()[:2])),
        *(values.stride()[:3] if is_paged else (0, *values.stride()[:2])),
        *key_scales.stride()[:2],
        GROUP=heads // kv_heads,
        KEY_DIM=key_dim,
        KEY_WIDTH=key_width,
        VALUE_DIM=value_dim,
        VALUE_WIDTH=value_width,
        BLOCK_SIZE=keys.shape[1] if is_paged else 0,
        QUERY_TILE=query_tile,
        PARTS=parts,
        KEY_TILE=key_tile,
        CAUSAL=scores.causal,
        HAS_SINKS=scores.sinks is not None,
        CODES=codes,
        FACTOR=CODE_FACTOR[codes],
        **scores.constants(),
        num_warps=num_warps,
        enable_fp_fusion=True,
        num_stages=num_stages,
    )
    return out


def _tiles(width: int, dtype: torch.dtype, is_paged: bool, has_bias: bool) -> tuple[int, int, int, int]:
    """Launch settings: queries per tile, keys per tile, number of warps, and pipeline stages of the loop over keys.

    A tile fits into the registers and the shared memory of a program. The settings were tuned on an H200 for 16-bit
    heads of width 64 and 128 (docs/gpu.md). Those for float32 were compiled but not tuned.

    width: width of a head.
    """
    if is_float32(dtype):
        queries, keys, num_warps = (32, 32, 4) if width <= 64 else (16, 32, 8) if width <= 128 else (16, 16, 8)
    elif width <= 128:
        return 64, 64 if width <= 64 and not has_bias else 32, 4, 2 if is_paged else 3
    else:
        queries, keys, num_warps = (64, 32, 8) if width <= 256 else (16, 16, 8)
    return queries, keys, num_warps, pipeline_stages(keys * width, dtype, is_paged)


LOG2_E = tl.constexpr(1.4426950408889634)
"""log2(e). Scores are multiplied by it, so that their exponential is a power of two, which the device computes
faster."""


@triton.jit
def _load_side(side, places, dims, is_key, DIM: tl.constexpr, WIDTH: tl.constexpr, masked: tl.constexpr):
    """Load one tile of keys, or one of values, from memory.

    side: address of the head. places: offset of each key. masked: some keys of the tile may not exist.
    """
    pointers = side + places[:, None] + dims[None, :]
    if masked:
        return tl.load(pointers, mask=is_key[:, None] & (dims < DIM)[None, :], other=0.0)
    elif DIM < WIDTH:
        return tl.load(pointers, mask=(dims < DIM)[None, :], other=0.0)
    else:
        return tl.load(pointers)


@kernel(
    do_not_specialize=[
        "spans",
        "query_starts",
        "key_lens",
        "first_positions",
        "where",
        "bias",
        "bias_width",
        "table_stride",
    ]
)
def _tiles_kernel(
    query,
    key,
    value,
    key_scales,
    value_scales,
    out,
    spans,
    query_starts,
    key_lens,
    first_positions,
    where,
    bias,
    sinks,
    scale,
    bias_width,
    heads,
    table_stride,
    query_token,
    query_head,
    key_block,
    key_slot,
    key_head,
    value_block,
    value_slot,
    value_head,
    scale_block,
    scale_head,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    PARTS: tl.constexpr,
    KEY_TILE: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    CODES: tl.constexpr,
    FACTOR: tl.constexpr,
    WINDOW: tl.constexpr,
    ATTENTION_CHUNK: tl.constexpr,
    CAP: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Compute one tile of queries of a row and head.

    spans: row of each span, and index of the span in its row. PARTS: tiles of a span.
    where: block tables. With BLOCK_SIZE 0, which means ragged keys, the index of the first key of each row.
    """
    span = spans + tl.program_id(0) // PARTS * 2
    row = tl.load(span).to(tl.int64)
    tile = tl.load(span + 1) * PARTS + tl.program_id(0) % PARTS
    head = tl.program_id(1)
    start = tl.load(query_starts + row)
    count = tl.load(query_starts + row + 1) - start
    if tile * QUERY_TILE >= count:
        return
    key_len = tl.load(key_lens + row)
    places = tile * QUERY_TILE + tl.arange(0, QUERY_TILE)
    is_query = places < count
    lowest = tl.load(first_positions + row) + tile * QUERY_TILE
    highest = lowest + tl.minimum(QUERY_TILE, count - tile * QUERY_TILE) - 1
    positions = lowest + tl.arange(0, QUERY_TILE)
    key_dims = tl.arange(0, KEY_WIDTH)
    value_dims = tl.arange(0, VALUE_WIDTH)
    token = (start + places).to(tl.int64)
    q = tl.load(
        query + token[:, None] * query_token + head * query_head + key_dims[None, :],
        mask=is_query[:, None] & (key_dims < KEY_DIM)[None, :],
        other=0.0,
    )
    # Keys from `begin` to `end` are visible to at least one query of the tile. Keys from `inner` to `inner_end` are
    # visible to all of them.
    begin = key_len * 0
    end = key_len
    inner = begin
    inner_end = key_len
    if CAUSAL:
        end = tl.minimum(end, highest + 1)
        inner_end = tl.minimum(inner_end, lowest + 1)
    if WINDOW > 0:
        begin = tl.maximum(begin, lowest - WINDOW + 1)
        inner = tl.maximum(inner, highest - WINDOW + 1)
        if not CAUSAL:
            end = tl.minimum(end, highest + WINDOW)
            inner_end = tl.minimum(inner_end, lowest + WINDOW)
    if ATTENTION_CHUNK > 0:
        begin = tl.maximum(begin, lowest // ATTENTION_CHUNK * ATTENTION_CHUNK)
        inner = tl.maximum(inner, highest // ATTENTION_CHUNK * ATTENTION_CHUNK)
    begin = begin // KEY_TILE * KEY_TILE
    inner = tl.minimum(tl.cdiv(inner, KEY_TILE) * KEY_TILE, tl.cdiv(end, KEY_TILE) * KEY_TILE)
    inner_end = tl.maximum(inner_end // KEY_TILE * KEY_TILE, inner)
    first_key = tl.load(where + row).to(tl.int64) if BLOCK_SIZE == 0 else row * 0
    kv_head = head // GROUP
    # Scores without cap and bias are scaled in the softmax, which computes powers of two.
    IS_PLAIN: tl.constexpr = CAP == 0.0 and BIAS == ""
    factor = LOG2_E * scale if IS_PLAIN else scale * 0.0 + LOG2_E
    maximum = tl.full([QUERY_TILE], float("-inf"), tl.float32)
    total = tl.zeros([QUERY_TILE], tl.float32)
    if HAS_SINKS:
        sink = tl.load(sinks + head)
        maximum = tl.zeros([QUERY_TILE], tl.float32) + (sink / scale if IS_PLAIN else sink)
        total += 1.0
    weighted = tl.zeros([QUERY_TILE, VALUE_WIDTH], tl.float32)
    # Tiles before those that all queries see, these tiles, and the tiles after them. Without a window or attention
    # chunks, the first part is empty.
    for part in tl.static_range(0 if WINDOW > 0 or ATTENTION_CHUNK > 0 else 1, 3):
        if part == 0:
            first_of_part, end_of_part = begin, inner
        elif part == 1:
            first_of_part, end_of_part = inner, inner_end
        else:
            first_of_part, end_of_part = inner_end, end
        for number in range(0, tl.cdiv(end_of_part - first_of_part, KEY_TILE)):
            keys = first_of_part + number * KEY_TILE + tl.arange(0, KEY_TILE)
            is_key = keys < key_len
            if BLOCK_SIZE == 0:
                key_place = (first_key + keys) * key_slot
                value_place = (first_key + keys) * value_slot
            else:
                table = where + row * table_stride + keys // BLOCK_SIZE
                block = (tl.load(table, mask=is_key, other=0) if part != 1 else tl.load(table)).to(tl.int64)
                key_place = block * key_block + keys % BLOCK_SIZE * key_slot
                value_place = block * value_block + keys % BLOCK_SIZE * value_slot
                scale_place = block * scale_block + kv_head * scale_head + keys % BLOCK_SIZE
            k = _load_side(key + kv_head * key_head, key_place, key_dims, is_key, KEY_DIM, KEY_WIDTH, part != 1)
            s = tl.dot(q, tl.trans(code_numbers(k, q.dtype, CODES)), input_precision="ieee")
            if CODES != "":
                s *= (tl.load(key_scales + scale_place, mask=is_key, other=0.0).to(tl.float32) * FACTOR)[None, :]
            distance = keys[None, :] - positions[:, None]
            if not IS_PLAIN:
                s = capped(s * scale, CAP)
                if BIAS == "key":
                    s += tl.load(bias + head * bias_width + tl.minimum(keys, bias_width - 1))[None, :]
                if BIAS == "distance":
                    index = tl.minimum(tl.maximum(distance + bias_width // 2, 0), bias_width - 1)
                    s += tl.load(bias + head * bias_width + index)
            if part != 1:
                visible = is_query[:, None] & is_key[None, :]
                if CAUSAL:
                    visible = visible & (distance <= 0)
                if WINDOW > 0:
                    visible = visible & (distance > -WINDOW)
                    if not CAUSAL:
                        visible = visible & (distance < WINDOW)
                if ATTENTION_CHUNK > 0:
                    visible = visible & (keys[None, :] >= (positions // ATTENTION_CHUNK * ATTENTION_CHUNK)[:, None])
                s = tl.where(visible, s, float("-inf"))
            larger = tl.maximum(maximum, tl.max(s, 1))
            shift = finite_maximum(larger) * factor
            # Tiles with and without a mask round in the same way, by a fused multiplication and addition. The bits of a
            # query must not depend on the mask.
            p = tl.exp2(tl.fma(s, factor, -shift[:, None]))
            # Exactly 1 without a larger score: a tile that a query does not see must not change its sums.
            old = tl.where(larger == maximum, 1.0, tl.exp2(tl.fma(maximum, factor, -shift)))
            v = _load_side(
                value + kv_head * value_head, value_place, value_dims, is_key, VALUE_DIM, VALUE_WIDTH, part != 1
            )
            total = total * old + tl.sum(p, 1)
            if CODES != "":
                p *= (tl.load(value_scales + scale_place, mask=is_key, other=0.0).to(tl.float32) * FACTOR)[None, :]
            v = code_numbers(v, q.dtype, CODES)
            weighted = tl.dot(p.to(q.dtype), v, weighted * old[:, None], input_precision="ieee")
            maximum = larger
    result = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        out + (token[:, None] * heads + head) * VALUE_DIM + value_dims[None, :],
        result.to(out.dtype.element_ty),
        mask=is_query[:, None] & (value_dims < VALUE_DIM)[None, :],
    )
