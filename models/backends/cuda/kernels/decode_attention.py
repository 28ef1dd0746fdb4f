"""Attention of one query per row over a paged cache. Keys are computed in chunks of 256 tokens.

Each chunk gives a partial result for each head. Of the programs of a row, the one that finishes last merges the partial
results in the order of the chunks. The bits of a row's result therefore depend neither on the number of programs nor on
other rows.
Source: Dao et al. 2023, "Flash-Decoding"; Milakov and Gimelshein 2018, arXiv:1805.02867.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.attention_arguments import Scores, capped, finite_maximum
from models.backends.cuda.kernels.codes import CODE_FACTOR, code_numbers
from models.backends.cuda.kernels.launch import SMALLEST_TILE, is_float32, kernel, pipeline_stages, tile_width
from models.backends.cuda.kernels.rounded_cache import CacheCodes
from models.backends.rounded_slots import CacheSide

KEY_CHUNK_TOKENS = 256
"""Tokens of a chunk of keys. Chunks begin at multiples of this number, counted from the first token of the row."""

_LEAST_PROGRAMS, _MOST_PROGRAMS = 2, 8
"""Smallest and largest number of programs per multiprocessor. Rows with too few chunks get fewer programs."""
_CHUNKS_OF_PROGRAM = 4
"""Above the smallest number of programs, each program gets at least this many chunks."""


class DecodeRows(NamedTuple):
    """The rows of a decode step. Each row has one query, at its last position.

    block_tables: [rows, blocks], int32 or int64: cache blocks of each row.
    key_lens: [rows], int32: number of keys of each row, including the key of the current step. A row with 0 keys gives
        zeros and reads no block. The unused rows of a graph have 0 keys.
    partial_starts: [rows], int32: index of each row's first partial result, as the function `partial_starts` computes
        it.
    """

    block_tables: Tensor
    key_lens: Tensor
    partial_starts: Tensor


class Partials(NamedTuple):
    """Memory for partial results. Layers may share it.

    sums: [partials, heads, value_dim], float32: values, weighted by exponentials of the scores.
    maxima: [partials, heads], float32: largest score. totals: [partials, heads], float32: sum of the exponentials.
    arrivals: [rows, heads], int32: number of programs that have stored their partial results, for each row and group of
        heads. All are 0 before and after a kernel.
    """

    sums: Tensor
    maxima: Tensor
    totals: Tensor
    arrivals: Tensor

    @classmethod
    def empty(cls, num_partials: int, num_rows: int, num_heads: int, value_dim: int, device: torch.device) -> Partials:
        """Allocate memory for `num_partials` chunks of `num_rows` rows."""
        sums = torch.empty(num_partials, num_heads, value_dim, device=device)
        maxima, totals = torch.empty(2, num_partials, num_heads, device=device)
        return cls(sums, maxima, totals, torch.zeros(num_rows, num_heads, dtype=torch.int32, device=device))


def partial_starts(key_lens: Sequence[int]) -> list[int]:
    """Index of each row's first partial result, then the number of all partial results: [rows + 1]."""
    return [0, *accumulate(-(-length // KEY_CHUNK_TOKENS) for length in key_lens)]


def num_splits(rows: int, num_kv_heads: int, max_key_len: int, num_processors: int) -> int:
    """Number of programs that share a row and key-value head.

    Short rows get few programs, because each has a fixed cost.

    rows: number of rows. num_processors: number of multiprocessors of the device.
    """
    chunks, groups = -(-max_key_len // KEY_CHUNK_TOKENS), max(1, rows * num_kv_heads)
    least, most = (-(-count * num_processors // groups) for count in (_LEAST_PROGRAMS, _MOST_PROGRAMS))
    return max(1, min(chunks, max(least, min(most, chunks // _CHUNKS_OF_PROGRAM))))


def paged_decode_attention(
    query: Tensor,
    key_cache: CacheSide,
    value_cache: CacheSide,
    rows: DecodeRows,
    scores: Scores,
    splits: int,
    partials: Partials,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of one query per row over the blocks of a cache. The cache already has the keys of the current step.

    query: [rows, heads, key_dim], model dtype; the last dimension contiguous.
    key_cache: [blocks, block_size, kv_heads, key_dim], dtype of the query; the last dimension contiguous. kv_heads
        divides heads. For a cache of 8 bits: RoundedSlots.
    value_cache: [blocks, block_size, kv_heads, value_dim], likewise. It may be the same tensor as `key_cache`.
    scores: `causal` has no effect, because the query is at the last position or, in cross-attention, sees all keys.
    splits: number of programs that share the chunks of a row and key-value head. The result does not depend on it.
    partials: memory for the partial results of all rows.
    out: [rows, heads, value_dim], contiguous: memory for the result; None for new memory.
    Returns [rows, heads, value_dim].
    """
    num_rows, heads, key_dim = query.shape
    keys, values, key_scales, value_scales, codes = CacheCodes.of(key_cache, value_cache)
    kv_heads, value_dim = values.shape[2:]
    if out is None:
        out = query.new_empty(num_rows, heads, value_dim)
    group = heads // kv_heads
    bias, bias_width = scores.bias_arguments(partials.maxima)
    width = max(tile_width(key_dim), tile_width(value_dim))
    group_tile = min(tile_width(group), _most_heads(width, query.dtype))
    tile, num_warps, num_stages = _tile(width, group_tile, query.dtype, codes)
    _attention_kernel[num_rows, kv_heads * -(-group // group_tile), splits](
        query,
        keys,
        values,
        key_scales,
        value_scales,
        rows.block_tables,
        rows.key_lens,
        rows.partial_starts,
        bias,
        partials.maxima if scores.sinks is None else scores.sinks,
        *partials,
        out,
        scores.scale,
        bias_width,
        heads,
        rows.block_tables.stride(0),
        *query.stride()[:2],
        *keys.stride()[:3],
        *values.stride()[:3],
        *key_scales.stride()[:2],
        GROUP=group,
        GROUP_TILE=group_tile,
        KEY_DIM=key_dim,
        KEY_WIDTH=tile_width(key_dim),
        VALUE_DIM=value_dim,
        VALUE_WIDTH=tile_width(value_dim),
        BLOCK_SIZE=keys.shape[1],
        TILE=tile,
        CHUNK=KEY_CHUNK_TOKENS,
        UNROLL=max(1, _MERGED_NUMBERS // (group_tile * tile_width(value_dim))),
        HAS_SINKS=scores.sinks is not None,
        CODES=codes,
        FACTOR=CODE_FACTOR[codes],
        **scores.constants(),
        num_warps=num_warps,
        enable_fp_fusion=True,
        num_stages=num_stages,
    )
    return out


_MERGED_NUMBERS = 2048
"""Number of values that a program loads at once when it merges partial results."""


def _tile(width: int, heads: int, dtype: torch.dtype, codes: str) -> tuple[int, int, int]:
    """Number of keys that a program loads at once, number of warps, and stages of the loop.

    Tuned on an H200 for head widths of 64 and 128 (docs/gpu.md). The settings must not depend on the number of rows,
    because other settings give a row other bits. The conversion of fp8 codes needs the registers of more warps.
    """
    if width <= 128 and not is_float32(dtype):
        return 128, 4 if heads * width <= 4096 and codes != "fp8" else 8, 2
    tile = max(SMALLEST_TILE, min(64, (2048 if is_float32(dtype) else 8192) // width))
    return tile, 4 if heads * width <= 4096 else 8, pipeline_stages(tile * width, dtype, is_paged=True)


def _most_heads(width: int, dtype: torch.dtype) -> int:
    """Largest number of query heads that one program computes. The sums of more heads do not fit in its registers."""
    return max(SMALLEST_TILE, (2048 if is_float32(dtype) else 8192) // width)


@triton.jit
def _first_visible(end, WINDOW: tl.constexpr, ATTENTION_CHUNK: tl.constexpr):
    """Index of the first key that the query at position `end - 1` sees."""
    first = end * 0
    if WINDOW > 0:
        first = tl.maximum(first, end - WINDOW)
    if ATTENTION_CHUNK > 0:
        first = tl.maximum(first, tl.maximum(end - 1, 0) // ATTENTION_CHUNK * ATTENTION_CHUNK)
    return first


@kernel(do_not_specialize=["block_tables", "key_lens", "partial_starts", "bias", "bias_width", "table_stride"])
def _attention_kernel(
    query,
    key_cache,
    value_cache,
    key_scales,
    value_scales,
    block_tables,
    key_lens,
    partial_starts,
    bias,
    sinks,
    sums,
    maxima,
    totals,
    arrivals,
    out,
    scale,
    bias_width,
    heads,
    table_stride,
    query_row,
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
    GROUP_TILE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    UNROLL: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    CODES: tl.constexpr,
    FACTOR: tl.constexpr,
    WINDOW: tl.constexpr,
    ATTENTION_CHUNK: tl.constexpr,
    CAP: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Compute partial results of one row: for a range of its chunks, and for a tile of query heads with one key head.

    Several programs share the chunks of a row and tile. The program that finishes last merges their partial results.
    """
    row = tl.program_id(0).to(tl.int64)
    PARTS: tl.constexpr = (GROUP + GROUP_TILE - 1) // GROUP_TILE
    kv_head = tl.program_id(1) // PARTS
    end = tl.load(key_lens + row)
    first = _first_visible(end, WINDOW, ATTENTION_CHUNK)
    start_of_partials = tl.load(partial_starts + row)
    members = tl.program_id(1) % PARTS * GROUP_TILE + tl.arange(0, GROUP_TILE)
    head = kv_head * GROUP + members
    is_head = members < GROUP
    key_dims = tl.arange(0, KEY_WIDTH)
    value_dims = tl.arange(0, VALUE_WIDTH)
    is_value = is_head[:, None] & (value_dims < VALUE_DIM)[None, :]
    q = tl.load(
        query + row * query_row + head[:, None] * query_head + key_dims[None, :],
        mask=is_head[:, None] & (key_dims < KEY_DIM)[None, :],
        other=0.0,
    )
    first_chunk = first // CHUNK
    num_chunks = tl.cdiv(end, CHUNK)
    share = tl.cdiv(num_chunks - first_chunk, tl.num_programs(2))
    own = first_chunk + tl.program_id(2) * share
    maximum = tl.full([GROUP_TILE], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_TILE], tl.float32)
    weighted = tl.zeros([GROUP_TILE, VALUE_WIDTH], tl.float32)
    # One loop over the tiles of all chunks of this program: the next chunk is loaded while this one ends.
    for start in range(tl.maximum(own * CHUNK, first // TILE * TILE), tl.minimum((own + share) * CHUNK, end), TILE):
        keys = start + tl.arange(0, TILE)
        visible = (keys >= first) & (keys < end)
        block = tl.load(block_tables + row * table_stride + keys // BLOCK_SIZE, mask=visible, other=0).to(tl.int64)
        slot = keys % BLOCK_SIZE
        k = tl.load(
            key_cache + (block * key_block + slot * key_slot + kv_head * key_head)[:, None] + key_dims[None, :],
            mask=visible[:, None] & (key_dims < KEY_DIM)[None, :],
            other=0.0,
        )
        s = tl.dot(q, tl.trans(code_numbers(k, q.dtype, CODES)), input_precision="ieee")
        place_of_scale = block * scale_block + kv_head * scale_head + slot
        if CODES != "":
            s *= (tl.load(key_scales + place_of_scale, mask=visible, other=0.0).to(tl.float32) * FACTOR)[None, :]
        s = capped(s * scale, CAP)
        if BIAS == "key":
            index = tl.minimum(keys, bias_width - 1)
            s += tl.load(bias + head[:, None] * bias_width + index[None, :], mask=is_head[:, None], other=0.0)
        if BIAS == "distance":
            index = tl.minimum(tl.maximum(keys - (end - 1) + bias_width // 2, 0), bias_width - 1)
            s += tl.load(bias + head[:, None] * bias_width + index[None, :], mask=is_head[:, None], other=0.0)
        s = tl.where(visible[None, :], s, float("-inf"))
        larger = tl.maximum(maximum, tl.max(s, 1))
        shift = finite_maximum(larger)
        p = tl.exp(s - shift[:, None])
        old = tl.exp(maximum - shift)
        v = tl.load(
            value_cache
            + (block * value_block + slot * value_slot + kv_head * value_head)[:, None]
            + value_dims[None, :],
            mask=visible[:, None] & (value_dims < VALUE_DIM)[None, :],
            other=0.0,
        )
        total = total * old + tl.sum(p, 1)
        if CODES != "":
            p *= (tl.load(value_scales + place_of_scale, mask=visible, other=0.0).to(tl.float32) * FACTOR)[None, :]
        v = code_numbers(v, q.dtype, CODES)
        weighted = weighted * old[:, None] + tl.dot(p.to(q.dtype), v, input_precision="ieee")
        maximum = larger
        if ((start + TILE) % CHUNK == 0) | (start + TILE >= end):
            place = (start_of_partials + start // CHUNK).to(tl.int64) * heads + head
            tl.store(maxima + place, maximum, mask=is_head)
            tl.store(totals + place, total, mask=is_head)
            tl.store(sums + place[:, None] * VALUE_DIM + value_dims[None, :], weighted, mask=is_value)
            maximum = tl.full([GROUP_TILE], float("-inf"), tl.float32)
            total = tl.zeros([GROUP_TILE], tl.float32)
            weighted = tl.zeros([GROUP_TILE, VALUE_WIDTH], tl.float32)
    # All partial results of this program are stored before it counts itself.
    tl.debug_barrier()
    arrival = arrivals + row * tl.num_programs(1) + tl.program_id(1)
    if tl.atomic_add(arrival, 1, sem="acq_rel") == tl.num_programs(2) - 1:
        tl.store(arrival, 0)
        maximum = tl.full([GROUP_TILE], float("-inf"), tl.float32)
        total = tl.zeros([GROUP_TILE], tl.float32)
        weighted = tl.zeros([GROUP_TILE, VALUE_WIDTH], tl.float32)
        if HAS_SINKS:
            maximum = tl.load(sinks + head, mask=is_head, other=0.0)
            total += 1.0
        for chunk in range(first_chunk, num_chunks, UNROLL):
            for number in tl.static_range(UNROLL):
                present = is_head & (chunk + number < num_chunks)
                place = (start_of_partials + chunk + number).to(tl.int64) * heads + head
                part_maximum = tl.load(maxima + place, mask=present, other=float("-inf"), cache_modifier=".cg")
                part_total = tl.load(totals + place, mask=present, other=0.0, cache_modifier=".cg")
                part = tl.load(
                    sums + place[:, None] * VALUE_DIM + value_dims[None, :],
                    mask=present[:, None] & (value_dims < VALUE_DIM)[None, :],
                    other=0.0,
                    cache_modifier=".cg",
                )
                larger = tl.maximum(maximum, part_maximum)
                shift = finite_maximum(larger)
                old, new = tl.exp(maximum - shift), tl.exp(part_maximum - shift)
                total = total * old + part_total * new
                weighted = weighted * old[:, None] + part * new[:, None]
                maximum = larger
        result = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
        place = (row * heads + head)[:, None] * VALUE_DIM + value_dims[None, :]
        tl.store(out + place, result.to(out.dtype.element_ty), mask=is_value)
