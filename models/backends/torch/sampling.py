"""The reference implementation of random sampling, in plain torch, on any device.

A scaled logit is a logit divided by the temperature of its row. Filters are thresholds on scaled logits, so tokens with
equal logits are all kept or all removed. The thresholds of a row:

- top_k: the k-th largest scaled logit (Fan et al. 2018, arXiv:1805.04833).
- top_p: the smallest scaled logit of the nucleus. The nucleus is the smallest set of most probable tokens, among those
  that top_k keeps, whose probabilities add up to top_p (Holtzman et al. 2020, arXiv:1904.09751).
- min_p: the largest scaled logit plus log(min_p) (Nguyen et al. 2024, arXiv:2407.01082).
- typical_p: a lower and an upper threshold. Among the tokens that the other filters keep, it selects those whose
  surprise is nearest to the entropy, until their probabilities add up to typical_p (Meister et al. 2023,
  arXiv:2202.00666).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_NUCLEUS_GUESS = 1024
"""Number of largest logits that are sorted first for a row with top_p alone. If they are too few, all are sorted."""
_TYPICAL_GUESS = 1024
"""Number of tokens nearest to the entropy that are sorted first for a row with typical_p."""
_BINS = 4096
"""Number of bins for the tokens of a flat row with typical_p. Only one bin is sorted."""
_COLDEST = 1e-30
"""Smallest temperature in use. A lower one gives the same tokens, but logits divided by it would overflow."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Settings of one row that shape its distribution; the defaults filter nothing."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0


class Drawn(NamedTuple):
    """The result of `draw`.

    tokens: [rows], int64: the drawn token of each row.
    lowest, highest: [rows], float32: bounds, inclusive, of the scaled logits that could be drawn.
    """

    tokens: Tensor
    lowest: Tensor
    highest: Tensor


def draw(logits: Tensor, rows: Sequence[Filters], uniforms: NDArray[np.float64]) -> Drawn:
    """Draw a token of each row from its filtered distribution. A row of -inf alone gives an arbitrary token.

    logits: [rows, vocab], float32, not modified.
    uniforms: [rows], in [0, 1): share of the distribution before the drawn token.
    """
    scaled = logits / temperatures(rows)[:, None].to(logits.device)
    lowest = thresholds(scaled, rows)
    highest = torch.full_like(lowest, torch.inf)
    filtered = [index for index, row in enumerate(rows) if row.typical_p < 1.0]
    if filtered:
        where = torch.tensor(filtered, device=logits.device)
        mass = _column([rows[index].typical_p for index in filtered], scaled.double())
        lowest[where], highest[where] = _typical(scaled[where], lowest[where], mass)
    outside = (scaled < lowest[:, None]) | (scaled > highest[:, None])
    return Drawn(invert(scaled, outside, torch.from_numpy(uniforms).to(logits.device)), lowest, highest)


def temperatures(rows: Sequence[Filters]) -> Tensor:
    """Temperature of each row, at least `_COLDEST`: [rows], float32."""
    return torch.tensor([max(row.temperature, _COLDEST) for row in rows])


def thresholds(scaled: Tensor, rows: Sequence[Filters]) -> Tensor:
    """The smallest scaled logit that top_k, top_p and min_p keep: [rows]. scaled: [rows, vocab], float32."""
    vocab = scaled.shape[1]
    lowest = torch.full_like(scaled[:, 0], -torch.inf)
    with_top_k = [i for i, row in enumerate(rows) if 0 < row.top_k < vocab]
    if with_top_k:
        where, largest = _largest(scaled, with_top_k, max(rows[i].top_k for i in with_top_k))
        kth = torch.tensor([rows[i].top_k - 1 for i in with_top_k], device=scaled.device)
        lowest[where] = largest.gather(1, kth[:, None])[:, 0]
        with_top_p = [n for n, i in enumerate(with_top_k) if rows[i].top_p < 1.0]
        if with_top_p:
            both = where[with_top_p]
            kept = scaled[both].masked_fill(scaled[both] < lowest[both, None], -torch.inf)
            top_p = [rows[with_top_k[n]].top_p for n in with_top_p]
            # `largest` has as many columns as the largest k of all rows. Logits beyond a row's own k are masked.
            own = largest[with_top_p]
            own = own.masked_fill(own < lowest[both, None], -torch.inf)
            lowest[both] = torch.maximum(lowest[both], _nucleus(own, kept, top_p)[0])
    alone = [i for i, row in enumerate(rows) if row.top_p < 1.0 and not 0 < row.top_k < vocab]
    for width in (min(_NUCLEUS_GUESS, vocab), vocab):
        if alone:
            where, largest = _largest(scaled, alone, width)
            lowest[where], reached = _nucleus(largest, scaled[where], [rows[i].top_p for i in alone])
            alone = [i for i, enough in zip(alone, reached.tolist(), strict=True) if not enough and width < vocab]
    min_p = [row.min_p for row in rows]
    if any(min_p):
        floor = scaled.amax(dim=-1) + torch.log(_column(min_p, scaled)[:, 0])
        lowest = torch.maximum(lowest, floor)
    return lowest


def _largest(scaled: Tensor, indices: Sequence[int], count: int) -> tuple[Tensor, Tensor]:
    """Indices of these rows as a tensor, and their `count` largest scaled logits in descending order."""
    where = torch.tensor(indices, device=scaled.device)
    return where, scaled[where].topk(count, dim=-1).values


def _nucleus(largest: Tensor, kept: Tensor, top_p: Sequence[float]) -> tuple[Tensor, Tensor]:
    """The smallest scaled logit of each row's nucleus, and whether the nucleus ends within `largest`.

    largest: [rows, count], the largest scaled logits, in descending order.
    kept: [rows, vocab], all scaled logits, -inf where top_k removed the token.
    """
    total = kept.double().logsumexp(dim=-1, keepdim=True)
    probabilities = (largest.double() - total).exp()
    before = probabilities.cumsum(dim=-1) - probabilities
    mass = _column(top_p, before)
    inside = before < mass
    inside[:, 0] = True
    last = inside.sum(dim=-1, keepdim=True) - 1
    return largest.gather(1, last)[:, 0], ~inside[:, -1]


def _typical(scaled: Tensor, lowest: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest scaled logit of each row's typical tokens.

    scaled: [rows, vocab], float32.
    lowest: [rows]: smaller logits were removed by the other filters.
    mass: [rows, 1], float64: the probability that the typical tokens must reach together.
    """
    kept = scaled.masked_fill(scaled < lowest[:, None], -torch.inf)
    log_probs = kept.double().log_softmax(dim=-1)
    probabilities = log_probs.exp()
    entropy = torch.special.entr(probabilities).sum(dim=-1, keepdim=True)
    distances = (log_probs + entropy).abs()
    # A distribution has about exp(entropy) typical tokens. If there are few, it is enough to sort few.
    flat = entropy[:, 0] > math.log(_TYPICAL_GUESS / 4)
    if scaled.shape[1] <= _TYPICAL_GUESS:
        flat = torch.zeros_like(flat)
    farthest = torch.empty_like(mass)
    peaked = (~flat).nonzero()[:, 0]
    if len(peaked):
        farthest[peaked], enough = _typical_few(distances[peaked], probabilities[peaked], mass[peaked])
        flat[peaked] = ~enough
    many = flat.nonzero()[:, 0]
    if len(many):
        farthest[many] = _typical_many(distances[many], probabilities[many], mass[many])
    outside = ~(distances <= farthest)
    return kept.masked_fill(outside, torch.inf).amin(dim=-1), kept.masked_fill(outside, -torch.inf).amax(dim=-1)


def _typical_few(distances: Tensor, probabilities: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """The distance at which the nearest tokens reach `mass`, and whether the sorted tokens were enough to reach it.

    Sorts at most `_TYPICAL_GUESS` nearest tokens of each row.

    distances: [rows, vocab], float64: distance of each token's surprise from the entropy.
    probabilities: [rows, vocab], float64.
    mass: [rows, 1], float64.
    """
    width = min(_TYPICAL_GUESS, distances.shape[1])
    nearest, order = distances.topk(width, dim=-1, largest=False)
    before = probabilities.gather(1, order).cumsum(dim=-1) < mass
    last = before.sum(dim=-1, keepdim=True).clamp_(max=width - 1)
    enough = ~before[:, -1] if width < distances.shape[1] else torch.ones_like(before[:, -1])
    return nearest.gather(1, last), enough


def _typical_many(distances: Tensor, probabilities: Tensor, mass: Tensor) -> Tensor:
    """The distance of `_typical_few` for rows with many typical tokens.

    Adds up the probabilities in bins of distance, and sorts only the bin in which the sum reaches `mass`.
    """
    alive = probabilities > 0
    near = distances.amin(dim=-1, keepdim=True)
    span = distances.masked_fill(~alive, 0.0).amax(dim=-1, keepdim=True) - near
    places = (distances - near) / span.clamp_(min=torch.finfo(span.dtype).tiny) * _BINS
    bins = places.clamp_(max=_BINS - 1).long()
    sums = torch.zeros(len(bins), _BINS, dtype=distances.dtype, device=distances.device)
    reached = sums.scatter_add_(1, bins, probabilities).cumsum(dim=-1)
    which = (reached < mass).sum(dim=-1, keepdim=True).clamp_(max=_BINS - 1)
    inside = (bins == which) & alive
    count = inside.sum(dim=-1, keepdim=True)
    nearest, order = distances.masked_fill(~inside, torch.inf).topk(int(count.max()), dim=-1, largest=False)
    start = reached.gather(1, (which - 1).clamp_(min=0)) * (which > 0)
    own = (probabilities * inside).gather(1, order).cumsum(dim=-1) + start
    last = (own < mass).sum(dim=-1, keepdim=True)
    return nearest.gather(1, torch.minimum(last, count - 1))


def invert(scaled: Tensor, outside: Tensor, uniforms: Tensor) -> Tensor:
    """The token of each row at which the running sum of the kept weights exceeds its share of their total.

    scaled: [rows, vocab], float32.
    outside: [rows, vocab], bool: tokens that the filters removed.
    uniforms: [rows], float64: the share.
    Returns [rows], int64.
    """
    weights = (scaled - scaled.amax(dim=-1, keepdim=True)).exp().masked_fill_(outside, 0.0)
    cumulative = weights.double().cumsum(dim=-1)
    total = cumulative[:, -1]
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    # The search runs past the end only if the filters removed every token; the result is then an arbitrary token.
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp_(max=scaled.shape[1] - 1)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
