"""Random draw of a token per row, after the filters top_k, top_p and min_p.

Each filter is a threshold for the logits (`models.backends.torch.sampling`). A first kernel finds the largest logits of
each chunk of a row, in many programs. A second kernel has one program per row, which finds the threshold by its sort
key, three bits at a time. This takes 11 passes over the largest logits of the chunks. If these logits may be too few,
the program searches the whole row. Probabilities are summed exactly, as integers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.attention_arguments import finite_maximum
from models.backends.cuda.kernels.launch import kernel, power_of_two
from models.backends.cuda.kernels.logits_top_k import numbers_of, sort_keys, top_k_of_chunks
from models.backends.torch.sampling import Drawn


class FilterColumns(NamedTuple):
    """Filters of the rows (`models.backends.torch.sampling.Filters`) as tensors, [rows] each.

    temperatures: float32, positive.
    top_ks: int32; 0 keeps all tokens.
    top_ps: float64; 1 keeps all tokens.
    log_min_ps: float32, logarithm of min_p; -inf keeps all tokens.
    typical_p is missing, because rows with typical_p below 1 need the torch reference.
    """

    temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    log_min_ps: Tensor


def draw(logits: Tensor, filters: FilterColumns, uniforms: Tensor) -> Drawn:
    """Draw a token of each row from its filtered distribution. A row with only -inf gives an arbitrary token.

    logits: [rows, vocab], float32, not modified; the last dimension contiguous.
    uniforms: [rows], float64, in [0, 1): cumulative probability at which the token is drawn.
    Returns the tokens, and for each row the smallest kept logit divided by the temperature.
    """
    (rows, vocab), device = logits.shape, logits.device
    keys, _ = top_k_of_chunks(logits, _CANDIDATES, with_sum=False)
    chunks = keys.shape[1]
    drawn = Drawn(
        torch.empty(rows, dtype=torch.int64, device=device),
        torch.empty(rows, device=device),
        torch.full((rows,), torch.inf, device=device),
    )
    if rows:
        _draw_kernel[(rows,)](
            logits,
            keys,
            *filters,
            uniforms,
            drawn.tokens,
            drawn.lowest,
            logits.stride(0),
            vocab,
            chunks,
            CANDIDATES=_CANDIDATES,
            CHUNKS_TILE=power_of_two(chunks),
            TILE=min(_TILE, power_of_two(vocab)),
            num_warps=8,
            enable_fp_fusion=True,
        )
    return drawn


_CANDIDATES = 64
"""Number of the largest logits of each chunk. They are searched first."""
_TILE = 4096
"""Number of logits that a program loads at once."""


@triton.jit
def _scaled(logits, places, count, temperature):
    """Load some logits and divide them by the temperature. Logits at indices of `count` or more are -inf.

    places: indices of the logits.
    logits: float32 logits, or int64 keys of `top_k_of_chunks`. Keys that stand for no logit give NaN.
    """
    x = tl.load(logits + places, mask=places < count, other=0)
    if logits.dtype.element_ty == tl.int64:
        x = numbers_of((x >> 32).to(tl.int32))
    x = tl.where(places < count, x, float("-inf"))
    return tl.div_rn(x, tl.zeros_like(x) + temperature)


@triton.jit
def _weights(x, maximum, lowest):
    """Convert logits to weights: probabilities relative to the largest one, as int64 where 2 ** 40 stands for 1.

    Logits below `lowest` get the weight 0.

    Sums of integers are exact, so they do not depend on their order. They are also fast: devices of compute capability
    8.6 and 8.9 compute float64, and convert 64-bit numbers, at 1/64 of the speed of float32.
    """
    weights = tl.where(x >= lowest, tl.exp(x - maximum), 0.0) * 1048576.0
    upper = weights.to(tl.int32)
    lower = ((weights - upper.to(tl.float32)) * 1048576.0).to(tl.int32)
    return upper.to(tl.int64) * 1048576 + lower.to(tl.int64)


@triton.jit
def _threshold(logits, count, temperature, maximum, lowest, wanted, BY_WEIGHT: tl.constexpr, TILE: tl.constexpr):
    """The largest threshold that enough logits reach or exceed.

    logits: float32 logits, or int64 keys of `top_k_of_chunks`. count: number of logits.
    lowest: logits below this value are ignored.
    wanted: int64, smallest number of logits that must reach the threshold; with BY_WEIGHT, smallest sum of weights.
    """
    # A sort key plus 2 ** 31, so that it is not negative.
    found = tl.zeros([], tl.int64)
    digit = tl.arange(0, 8)
    for step in range(11):
        shift = tl.zeros([], tl.int64) + (30 - 3 * step)
        reached = tl.zeros([8], tl.int64)
        for start in range(0, count, TILE):
            x = _scaled(logits, start + tl.arange(0, TILE), count, temperature)
            keys = sort_keys(x)
            weights = _weights(x, maximum, lowest) if BY_WEIGHT else (x >= lowest).to(tl.int32)
            for number in tl.static_range(1, 8):
                # No number has the largest int32 as its key, so larger bounds can be replaced by it.
                bound = tl.minimum(found + ((shift * 0 + number) << shift) - 2147483648, 2147483647).to(tl.int32)
                above = tl.sum(tl.where(keys >= bound, weights, 0), 0)
                reached += tl.where(digit == number, above.to(tl.int64), 0)
        enough = (reached >= wanted) | (digit == 0)
        found += tl.max(tl.where(enough, digit.to(tl.int64) << shift, 0), 0)
    # Limit the result to the keys of -inf and inf.
    return numbers_of(tl.minimum(tl.maximum(found - 2147483648, -2139095041), 2139095040).to(tl.int32))


@triton.jit
def _threshold_of_row(
    logits,
    keys,
    vocab,
    num_keys,
    complete_above,
    temperature,
    maximum,
    lowest,
    wanted,
    BY_WEIGHT: tl.constexpr,
    TILE: tl.constexpr,
):
    """Find the largest threshold that enough logits of a row reach, as `_threshold` does.

    Searches the largest logits of its chunks first, because this is faster than a search of the whole row.
    keys, num_keys: keys of the largest logits of the chunks, and their number.
    complete_above: `keys` contains all logits of the row that are larger than this number.
    """
    found = _threshold(keys, num_keys, temperature, maximum, lowest, wanted, BY_WEIGHT, TILE)
    if found <= complete_above:
        found = _threshold(logits, vocab, temperature, maximum, lowest, wanted, BY_WEIGHT, TILE)
    return found


@triton.jit
def _total(logits, vocab, temperature, maximum, lowest, TILE: tl.constexpr):
    """Sum of all token weights in a row, int64. `_weights` defines the weight of a token."""
    total = tl.zeros([], tl.int64)
    for start in range(0, vocab, TILE):
        x = _scaled(logits, start + tl.arange(0, TILE), vocab, temperature)
        total += tl.sum(_weights(x, maximum, lowest), 0)
    return total


@kernel(do_not_specialize=["temperatures", "top_ks", "top_ps", "log_min_ps", "uniforms"])
def _draw_kernel(
    logits,
    keys,
    temperatures,
    top_ks,
    top_ps,
    log_min_ps,
    uniforms,
    tokens,
    lowest_of,
    stride,
    vocab,
    chunks,
    CANDIDATES: tl.constexpr,
    CHUNKS_TILE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Draw the token of one row. keys: [rows, chunks, CANDIDATES], int64, in descending order."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    num_keys = chunks * CANDIDATES
    keys += row * num_keys
    temperature = tl.load(temperatures + row)
    top_k = tl.load(top_ks + row)
    top_p = tl.load(top_ps + row)
    firsts = tl.arange(0, CHUNKS_TILE) * CANDIDATES
    maximum = finite_maximum(tl.max(_scaled(keys, firsts, num_keys, temperature), 0))
    edges = _scaled(keys, firsts + CANDIDATES - 1, num_keys, temperature)
    complete_above = tl.max(tl.where(edges == edges, edges, float("-inf")), 0)
    lowest = tl.full([], float("-inf"), tl.float32)
    if (top_k > 0) & (top_k < vocab):
        wanted = top_k.to(tl.int64)
        lowest = _threshold_of_row(
            logits, keys, vocab, num_keys, complete_above, temperature, maximum, lowest, wanted, False, TILE
        )
    if top_p < 1.0:
        total = _total(logits, vocab, temperature, maximum, lowest, TILE)
        wanted = tl.ceil(top_p * total.to(tl.float64)).to(tl.int64)
        nucleus = _threshold_of_row(
            logits, keys, vocab, num_keys, complete_above, temperature, maximum, lowest, wanted, True, TILE
        )
        lowest = tl.maximum(lowest, tl.minimum(nucleus, maximum))
    lowest = tl.maximum(lowest, maximum + tl.load(log_min_ps + row))
    total = _total(logits, vocab, temperature, maximum, lowest, TILE)
    # Rounding can leave the target at the end of the distribution.
    target = tl.minimum((tl.load(uniforms + row) * total.to(tl.float64)).to(tl.int64), total - 1)
    before = tl.zeros([], tl.int64)
    token = tl.zeros([], tl.int32) - 1
    for start in range(0, vocab, TILE):
        ids = start + tl.arange(0, TILE)
        x = _scaled(logits, ids, vocab, temperature)
        weights = _weights(x, maximum, lowest)
        chosen = (before + tl.cumsum(weights, 0) > target) & (weights > 0)
        here = tl.min(tl.where(chosen, ids, 2147483647), 0)
        token = tl.where((token < 0) & (here < 2147483647), here, token)
        before += tl.sum(weights, 0)
    tl.store(tokens + row, tl.maximum(token, 0).to(tl.int64))
    tl.store(lowest_of + row, lowest)
