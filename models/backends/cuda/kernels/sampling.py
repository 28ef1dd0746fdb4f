"""Random choice of a token per row: filters by top_k, top_p and min_p, and the draw. One program per row.

Filters are thresholds (`models.backends.torch.sampling`). A threshold is found without sorting: its sort key is
searched for three bits at a time, in 11 passes over the row. Probabilities are summed in float64, in an order that
depends on the row alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.launch import power_of_two
from models.backends.cuda.kernels.logits_top_k import numbers_of, sort_keys
from models.backends.torch.sampling import Drawn


class FilterColumns(NamedTuple):
    """Filters of the rows (`models.backends.torch.sampling.Filters`) as tensors, [rows] each.

    temperatures: float32, positive. top_ks: int32; 0 keeps all. top_ps: float64; 1 keeps all. log_min_ps: float32, log
    of min_p; -inf keeps all. typical_p is not here: rows with typical_p below 1 need the torch reference.
    """

    temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    log_min_ps: Tensor


def draw(logits: Tensor, filters: FilterColumns, uniforms: Tensor) -> Drawn:
    """Draw a token of each row from its filtered distribution. A row of -inf alone gives an arbitrary token.

    logits: [rows, vocab], float32, not modified; the last dimension contiguous.
    uniforms: [rows], float64, in [0, 1): share of the distribution before the drawn token.
    """
    rows, vocab = logits.shape
    drawn = Drawn(
        torch.empty(rows, dtype=torch.int64, device=logits.device),
        torch.empty(rows, device=logits.device),
        torch.full((rows,), torch.inf, device=logits.device),
    )
    if rows:
        _draw_kernel[(rows,)](
            logits,
            *filters,
            uniforms,
            drawn.tokens,
            drawn.lowest,
            logits.stride(0),
            vocab,
            TILE=min(_TILE, power_of_two(vocab)),
            num_warps=8,
            enable_fp_fusion=True,
        )
    return drawn


_TILE = 4096
"""Logits that a program loads at once."""


@triton.jit
def _scaled(logits, start, vocab, temperature, TILE: tl.constexpr):
    """Ids and logits of a tile, divided by the temperature. Beyond the vocabulary they are -inf."""
    ids = start + tl.arange(0, TILE)
    x = tl.load(logits + ids, mask=ids < vocab, other=float("-inf"))
    return ids, tl.div_rn(x, tl.zeros([TILE], tl.float32) + temperature)


@triton.jit
def _mass(x, maximum, lowest):
    """Weights of logits from `lowest` up, relative to the largest: float64."""
    return tl.where(x >= lowest, tl.exp(x - maximum), 0.0).to(tl.float64)


@triton.jit
def _threshold(logits, vocab, temperature, maximum, lowest, wanted, BY_MASS: tl.constexpr, TILE: tl.constexpr):
    """The largest number such that the logits from it up have the wanted count, or the wanted mass.

    lowest: logits below count for nothing.
    """
    # Sort keys plus 2 ** 31, so that they are not negative.
    found = tl.zeros([], tl.int64)
    digit = tl.arange(0, 8)
    for step in range(11):
        shift = tl.zeros([], tl.int64) + (30 - 3 * step)
        steps = digit.to(tl.int64) << shift
        reached = tl.zeros([8], tl.float64)
        for start in range(0, vocab, TILE):
            ids, x = _scaled(logits, start, vocab, temperature, TILE)
            keys = sort_keys(x).to(tl.int64) + 2147483648
            weights = tl.where((ids < vocab) & (x >= lowest), 1.0, 0.0)
            if BY_MASS:
                weights = weights * tl.exp(x - maximum)
            for number in tl.static_range(1, 8):
                bound = found + ((shift * 0 + number) << shift)
                above = tl.sum(tl.where(keys >= bound, weights, 0.0).to(tl.float64), 0)
                reached += tl.where(digit == number, above, 0.0)
        enough = (reached >= wanted) | (digit == 0)
        found += tl.max(tl.where(enough, steps, 0), 0)
    # The keys of -inf and inf.
    return numbers_of(tl.minimum(tl.maximum(found - 2147483648, -2139095041), 2139095040).to(tl.int32))


@triton.jit
def _draw_kernel(
    logits,
    temperatures,
    top_ks,
    top_ps,
    log_min_ps,
    uniforms,
    tokens,
    lowest_of,
    stride,
    vocab,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    temperature = tl.load(temperatures + row)
    top_k = tl.load(top_ks + row)
    top_p = tl.load(top_ps + row)
    maxima = tl.full([TILE], float("-inf"), tl.float32)
    for start in range(0, vocab, TILE):
        ids, x = _scaled(logits, start, vocab, temperature, TILE)
        maxima = tl.maximum(maxima, x)
    maximum = tl.max(maxima, 0)
    lowest = tl.full([], float("-inf"), tl.float32)
    if (top_k > 0) & (top_k < vocab):
        lowest = _threshold(logits, vocab, temperature, maximum, lowest, top_k.to(tl.float64), False, TILE)
    if top_p < 1.0:
        total = tl.zeros([], tl.float64)
        for start in range(0, vocab, TILE):
            ids, x = _scaled(logits, start, vocab, temperature, TILE)
            total += tl.sum(_mass(x, maximum, lowest), 0)
        nucleus = _threshold(logits, vocab, temperature, maximum, lowest, top_p * total, True, TILE)
        lowest = tl.maximum(lowest, tl.minimum(nucleus, maximum))
    lowest = tl.maximum(lowest, maximum + tl.load(log_min_ps + row))
    total = tl.zeros([], tl.float64)
    for start in range(0, vocab, TILE):
        ids, x = _scaled(logits, start, vocab, temperature, TILE)
        total += tl.sum(_mass(x, maximum, lowest), 0)
    target = tl.load(uniforms + row) * total
    before = tl.zeros([], tl.float64)
    token = tl.zeros([], tl.int32) - 1
    last = tl.zeros([], tl.int32)
    for start in range(0, vocab, TILE):
        ids, x = _scaled(logits, start, vocab, temperature, TILE)
        weights = _mass(x, maximum, lowest)
        chosen = (before + tl.cumsum(weights, 0) > target) & (weights > 0.0)
        here = tl.min(tl.where(chosen, ids, 2147483647), 0)
        token = tl.where((token < 0) & (here < 2147483647), here, token)
        last = tl.maximum(last, tl.max(tl.where(weights > 0.0, ids, 0), 0))
        before += tl.sum(weights, 0)
    # Rounding can leave the target at the end of the distribution: the last kept token.
    tl.store(tokens + row, tl.where(token < 0, last, token).to(tl.int64))
    tl.store(lowest_of + row, lowest)
