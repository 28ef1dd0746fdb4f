"""Tokens at random, in plain torch: the reference, on any device.

Three filters are thresholds on a row's logits over its temperature, so that ties live or die together: top_k, the k-th
largest (Fan et al. 2018, arXiv:1805.04833); top_p, the smallest of the likeliest that together reach top_p of what is
left by top_k (Holtzman et al. 2020, arXiv:1904.09751); min_p, the largest plus log(min_p) (Nguyen et al. 2024,
arXiv:2407.01082).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_NUCLEUS_GUESS = 1024
"""How many of the first tokens are sorted before more is done for a row with top_p alone."""
_COLDEST = 1e-30
"""A temperature below which nothing changes any more, except that logits divided by it would overflow."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Settings of one row that shape its distribution; the defaults filter nothing."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def draw(logits: Tensor, rows: Sequence[Filters], uniforms: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
    """One token of each row, and the smallest of its scaled logits that may be drawn: [rows], int64 and float32.

    logits: [rows, vocab], float32, kept; any token where all are -inf. uniforms: [rows], in [0, 1): which share of the
    distribution comes before the token.
    """
    scaled = scale(logits, rows)
    lowest = thresholds(scaled, rows)
    return invert(scaled, lowest, torch.from_numpy(uniforms).to(logits.device)), lowest


def scale(logits: Tensor, rows: Sequence[Filters]) -> Tensor:
    """Each row over its temperature."""
    return logits / temperatures(rows)[:, None].to(logits.device)


def temperatures(rows: Sequence[Filters]) -> Tensor:
    """[rows], float32: none of them so small that a logit over it overflows."""
    return torch.tensor([max(row.temperature, _COLDEST) for row in rows])


def thresholds(scaled: Tensor, rows: Sequence[Filters]) -> Tensor:
    """The smallest logit that survives in each row: [rows]. scaled: [rows, vocab], float32, after temperature."""
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
            # Beyond its own k a row's largest logits are not its own any more: they are filtered out.
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
    """Some rows' `count` largest logits, falling."""
    where = torch.tensor(indices, device=scaled.device)
    return where, scaled[where].topk(count, dim=-1).values


def _nucleus(largest: Tensor, kept: Tensor, top_p: Sequence[float]) -> tuple[Tensor, Tensor]:
    """The smallest logit of each row's nucleus, and whether the largest logits were enough to tell.

    largest: [rows, count], falling; kept: [rows, vocab], the whole distribution.
    """
    total = kept.double().logsumexp(dim=-1, keepdim=True)
    probabilities = (largest.double() - total).exp()
    before = probabilities.cumsum(dim=-1) - probabilities
    wanted = _column(top_p, before)
    inside = before < wanted
    inside[:, 0] = True
    last = inside.sum(dim=-1, keepdim=True) - 1
    return largest.gather(1, last)[:, 0], ~inside[:, -1]


def invert(scaled: Tensor, lowest: Tensor, uniforms: Tensor) -> Tensor:
    """The tokens at which the running sums of the survivors' weights pass a share. uniforms: [rows], float64."""
    weights = (scaled - scaled.amax(dim=-1, keepdim=True)).exp()
    weights = weights.masked_fill(scaled < lowest[:, None], 0.0)
    cumulative = weights.double().cumsum(dim=-1)
    total = cumulative[:, -1]
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    # Only where nothing survives at all does the search run past the end; the caller looks at the logit it gets.
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp_(max=scaled.shape[1] - 1)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
