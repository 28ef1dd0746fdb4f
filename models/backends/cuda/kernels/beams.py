"""The next beams of beam searches, and the cache slots of their texts.

`models.backends.torch.beams` describes both functions and their arguments, and is the reference for them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.launch import kernel, power_of_two, warps
from models.backends.cuda.kernels.logits_top_k import sort_keys
from models.backends.torch.beams import MAX_CANDIDATES, NEVER, NO_TOKEN_LEFT, NOT_FINITE, NUM_SEARCH_COLUMNS, Beams

_CANDIDATES_TILE = power_of_two(MAX_CANDIDATES)
_SMALLEST_SIZE = 8
_COLUMNS = 16
"""Number of tokens whose slots one program moves. It does so for all rows: no program reads what another one writes."""


def choose_beams(
    log_probs: Tensor,
    token_ids: Tensor,
    is_finite: Tensor,
    scores: Tensor,
    searches: Tensor,
    num_candidates: int,
    beams: Beams,
) -> Tensor:
    """Choose the next beams of each search. `TorchBeams.choose_beams`, the reference, describes arguments and result.

    num_candidates: at most MAX_CANDIDATES. A search considers at least two continuations for each of its beams. There
        is one compiled kernel for each power of two from 8.
    """
    num_columns, num_searches = searches.shape
    results = torch.empty(num_searches, 1 + 2 * num_candidates, dtype=torch.int64, device=scores.device)
    size = max(_SMALLEST_SIZE, power_of_two(num_candidates))
    tile = size * size // 2
    if num_searches:
        _choose_kernel[num_searches,](
            log_probs,
            token_ids,
            is_finite,
            scores,
            searches,
            *beams,
            results,
            *log_probs.stride(),
            *token_ids.stride(),
            num_columns - NUM_SEARCH_COLUMNS,
            num_candidates,
            TILE=tile,
            CANDIDATES_TILE=_CANDIDATES_TILE,
            NEVER=NEVER,
            NOT_FINITE=NOT_FINITE,
            NO_TOKEN_LEFT=NO_TOKEN_LEFT,
            num_warps=warps(tile),
            enable_fp_fusion=True,
        )
    return results


def follow_beams(tables: Tensor, beams: Beams, scores: Tensor, places: Tensor, slots: Tensor, key_lens: Tensor) -> None:
    """Update the cache slots of each row. `TorchBeams.follow_beams`, the reference, describes the arguments.

    tables: the last dimension contiguous.
    """
    rows, width = tables.shape
    tile = power_of_two(rows)
    _follow_kernel[-(-width // _COLUMNS),](
        tables,
        beams.parents,
        beams.scores,
        scores,
        places,
        slots,
        key_lens,
        tables.stride(0),
        rows,
        beams.parents.shape[0],
        ROWS=tile,
        COLUMNS=_COLUMNS,
        num_warps=warps(tile * _COLUMNS),
        enable_fp_fusion=True,
    )


@triton.jit
def _rank_keys(x, places):
    """int64 keys that sort like the float32 numbers. Of equal numbers, the one with the lower place has the larger key.

    places: int32, from 0.
    """
    return sort_keys(x).to(tl.int64) * 4294967296 + (0x7FFFFFFF - places)


@kernel(
    do_not_specialize=[
        "log_probs",
        "token_ids",
        "is_finite",
        "scores",
        "searches",
        "row_of_log_probs",
        "column_of_log_probs",
        "row_of_ids",
        "column_of_ids",
        "num_ends",
        "num_candidates",
    ]
)
def _choose_kernel(
    log_probs,
    token_ids,
    is_finite,
    scores,
    searches,
    tokens,
    parents,
    next_scores,
    results,
    row_of_log_probs,
    column_of_log_probs,
    row_of_ids,
    column_of_ids,
    num_ends,
    num_candidates,
    TILE: tl.constexpr,
    CANDIDATES_TILE: tl.constexpr,
    NEVER: tl.constexpr,
    NOT_FINITE: tl.constexpr,
    NO_TOKEN_LEFT: tl.constexpr,
):
    """Choose the next beams of one search. row_of_..., column_of_...: strides."""
    search = tl.program_id(0)
    num_searches = tl.num_programs(0)
    first = tl.load(searches + search)
    num_beams = tl.load(searches + num_searches + search).to(tl.int32)
    count = tl.load(searches + 2 * num_searches + search).to(tl.int32)
    places = tl.arange(0, TILE)
    beam, column = places // count, places % count
    inside = beam < num_beams
    row = first + beam
    values = tl.load(
        log_probs + row * row_of_log_probs + column * column_of_log_probs, mask=inside, other=float("-inf")
    )
    totals = values + tl.load(scores + row, mask=inside, other=0.0)
    left = tl.where(inside, _rank_keys(totals, places), -9223372036854775807)
    ranks = tl.arange(0, CANDIDATES_TILE)
    best_places = tl.zeros([CANDIDATES_TILE], tl.int32)
    for rank in range(count):
        best = tl.max(left, 0)
        best_places = tl.where(ranks == rank, 0x7FFFFFFF - (best & 0xFFFFFFFF).to(tl.int32), best_places)
        left = tl.where(left == best, -9223372036854775807, left)
    # The continuations that the search considers, best first.
    is_rank = ranks < count
    parent, column = best_places // count, best_places % count
    row = first + parent
    totals = tl.load(log_probs + row * row_of_log_probs + column * column_of_log_probs, mask=is_rank, other=0.0)
    totals += tl.load(scores + row, mask=is_rank, other=0.0)
    ids = tl.load(token_ids + row * row_of_ids + column * column_of_ids, mask=is_rank, other=0)
    result = results + search.to(tl.int64) * (1 + 2 * num_candidates)
    tl.store(result + 1 + ranks, parent.to(tl.int64) * 4294967296 + ids, mask=is_rank)
    bits = totals.to(tl.int32, bitcast=True).to(tl.int64)
    tl.store(result + 1 + num_candidates + ranks, bits, mask=is_rank)
    # The search stops at the first row whose logits are not finite, else where no continuation is possible.
    beams = tl.arange(0, CANDIDATES_TILE)
    finite = tl.load(is_finite + first + beams, mask=beams < num_beams, other=1).to(tl.int32)
    state = tl.where(tl.max(values, 0) == float("-inf"), NO_TOKEN_LEFT, 0)
    tl.store(result, tl.where(tl.min(finite, 0) == 0, NOT_FINITE, state).to(tl.int64))
    is_end = ids < 0
    for number in range(num_ends):
        is_end = is_end | (ids == tl.load(searches + (3 + number) * num_searches + search))
    ranked = tl.where(is_end, totals + NEVER, totals)
    left = tl.where(is_rank, _rank_keys(ranked, ranks), -9223372036854775807)
    for number in range(num_beams):
        best = tl.max(left, 0)
        is_chosen = left == best
        tl.store(tokens + first + number, tl.sum(tl.where(is_chosen, ids, 0), 0))
        tl.store(parents + first + number, first + tl.sum(tl.where(is_chosen, parent, 0), 0))
        tl.store(next_scores + first + number, tl.sum(tl.where(is_chosen, ranked, 0.0), 0))
        left = tl.where(is_chosen, -9223372036854775807, left)


@kernel(do_not_specialize=["places", "slots", "key_lens", "stride", "rows"])
def _follow_kernel(
    tables,
    parents,
    chosen_scores,
    scores,
    places,
    slots,
    key_lens,
    stride,
    rows,
    num_places,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Move the slots of COLUMNS tokens of all rows. The first program also sets the scores.

    num_places: length of `parents` and `chosen_scores`.
    """
    row = tl.arange(0, ROWS)
    is_row = row < rows
    place = tl.load(places + row, mask=is_row, other=num_places)
    is_chosen = is_row & (place < num_places)
    lens = tl.load(key_lens + row, mask=is_row, other=0)
    start = tl.program_id(0) * COLUMNS
    if start == 0:
        at = tl.where(is_chosen, place, row)
        tl.store(scores + row, tl.load(chosen_scores + at, mask=is_row, other=0.0), mask=is_row)
    if start < tl.max(lens, 0):
        source = tl.where(is_chosen, tl.load(parents + place, mask=is_chosen, other=0), row)
        columns = start + tl.arange(0, COLUMNS)
        has_key = is_row[:, None] & (columns[None, :] < lens[:, None])
        is_new = columns[None, :] == lens[:, None] - 1
        old = tl.load(tables + source[:, None] * stride + columns[None, :], mask=has_key & ~is_new, other=0)
        slot = tl.load(slots + row, mask=is_row, other=0).to(tl.int32)
        # All slots are read before the first one is written.
        tl.debug_barrier()
        target = tables + row.to(tl.int64)[:, None] * stride + columns[None, :]
        tl.store(target, tl.where(is_new, slot[:, None], old), mask=has_key)
