"""Random choice of tokens, in plain torch: the reference, on any device.

All filters are thresholds on a row's logits divided by its temperature. Equal logits are kept or dropped together:
- top_k keeps the logits that are at least the k-th largest (Fan et al. 2018, arXiv:1805.04833);
- top_p keeps the smallest set of largest logits with probability top_p among those that top_k keeps (Holtzman et al.
  2020, arXiv:1904.09751);
- min_p keeps the logits that are at least the largest logit plus log(min_p) (Nguyen et al. 2024, arXiv:2407.01082);
- typical_p keeps, of the remaining tokens, those whose information content is nearest to the entropy, until their
probability reaches typical_p; their logits form an interval (Meister et al. 2023, arXiv:2202.00666).
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

from models.backends.logits import LogitsTopK
from models.backends.torch.logits_top_k import logits_top_k

_NUCLEUS_GUESS = 1024
"""How many of the largest logits are sorted first for a row with top_p alone. If their probability is below top_p, all
logits are sorted."""
_TYPICAL_GUESS = 1024
"""How many of the most typical tokens are sorted first for a row with typical_p. If their probability is below
typical_p, all tokens are counted in bins (`_BINS`)."""
_BINS = 4096
"""Number of bins into which the tokens of a flat distribution are counted, for typical_p. Only the tokens of one bin
are sorted."""
_MIN_TEMPERATURE = 1e-30
"""Smallest temperature used. Lower temperatures would give the same tokens, but logits divided by them would
overflow."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Sampling settings of one row. The defaults filter nothing."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0


class Drawn(NamedTuple):
    """Random tokens, and the interval of logits that they were drawn from.

    tokens: [rows], int64.
    lowest, highest: [rows], float32: inclusive bounds of the kept logits, divided by the temperature.
    """

    tokens: Tensor
    lowest: Tensor
    highest: Tensor


class TorchSampling:
    """Top-k logits and random choice of tokens."""

    def logits_top_k(self, logits: Tensor, k: int = 1, with_logsumexp: bool = False) -> LogitsTopK:
        """The k largest logits of each row, the lower id first among equal logits.

        logits: [rows, vocab], float32; 1 <= k <= vocab.
        """
        return logits_top_k(logits, k, with_logsumexp)

    def draw(self, logits: Tensor, rows: Sequence[Filters], uniforms: NDArray[np.float64]) -> Drawn:
        """Draw a token of each row from its filtered distribution.

        A row in which all logits are -inf gives an arbitrary token.

        logits: [rows, vocab], float32, not modified.
        rows: settings of each row.
        uniforms: [rows], float64, in [0, 1): cumulative probability at which the token is drawn.
        """
        scaled = logits / temperatures(rows)[:, None].to(logits.device)
        lowest = thresholds(scaled, rows)
        highest = torch.full_like(lowest, torch.inf)
        filtered = [index for index, row in enumerate(rows) if row.typical_p < 1.0]
        if filtered:
            where = torch.tensor(filtered, device=logits.device)
            typical_p = _column([rows[index].typical_p for index in filtered], scaled.double())
            lowest[where], highest[where] = _typical(scaled[where], lowest[where], typical_p)
        outside = (scaled < lowest[:, None]) | (scaled > highest[:, None])
        return Drawn(invert(scaled, outside, torch.from_numpy(uniforms).to(logits.device)), lowest, highest)


def temperatures(rows: Sequence[Filters]) -> Tensor:
    """Temperatures of the rows, [rows], float32, limited so that no logit divided by them overflows."""
    return torch.tensor([max(row.temperature, _MIN_TEMPERATURE) for row in rows])


def thresholds(scaled: Tensor, rows: Sequence[Filters]) -> Tensor:
    """The smallest logit of each row that top_k, top_p and min_p keep, [rows].

    scaled: [rows, vocab], float32, divided by the temperature.
    """
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
            # Rows have different k. Of the logits sorted for the largest k, each row uses its own k only.
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
    """The given row indices as a tensor, and the `count` largest logits of each of these rows, in descending order."""
    where = torch.tensor(indices, device=scaled.device)
    return where, scaled[where].topk(count, dim=-1).values


def _nucleus(largest: Tensor, kept: Tensor, top_p: Sequence[float]) -> tuple[Tensor, Tensor]:
    """The smallest logit of each row's nucleus (the top-p tokens), and whether `largest` contains the whole nucleus.

    largest: [rows, count], in descending order. kept: [rows, vocab], all logits that top_k keeps.
    """
    total = kept.double().logsumexp(dim=-1, keepdim=True)
    probabilities = (largest.double() - total).exp()
    before = probabilities.cumsum(dim=-1) - probabilities
    inside = before < _column(top_p, before)
    inside[:, 0] = True
    last = inside.sum(dim=-1, keepdim=True) - 1
    return largest.gather(1, last)[:, 0], ~inside[:, -1]


def _typical(scaled: Tensor, lowest: Tensor, typical_p: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest logit of each row's typical tokens, among logits from `lowest` up.

    scaled: [rows, vocab]. lowest: [rows]. typical_p: [rows, 1], float64.
    """
    kept = scaled.masked_fill(scaled < lowest[:, None], -torch.inf)
    log_probs = kept.double().log_softmax(dim=-1)
    probabilities = log_probs.exp()
    entropy = torch.special.entr(probabilities).sum(dim=-1, keepdim=True)
    distances = (log_probs + entropy).abs()
    # A distribution has about exp(entropy) typical tokens. With few of them, sorting few tokens is enough.
    flat = entropy[:, 0] > math.log(_TYPICAL_GUESS / 4)
    if scaled.shape[1] <= _TYPICAL_GUESS:
        flat = torch.zeros_like(flat)
    farthest = torch.empty_like(typical_p)
    peaked = (~flat).nonzero()[:, 0]
    if len(peaked):
        farthest[peaked], enough = _typical_few(distances[peaked], probabilities[peaked], typical_p[peaked])
        flat[peaked] = ~enough
    many = flat.nonzero()[:, 0]
    if len(many):
        farthest[many] = _typical_many(distances[many], probabilities[many], typical_p[many])
    outside = ~(distances <= farthest)
    return kept.masked_fill(outside, torch.inf).amin(dim=-1), kept.masked_fill(outside, -torch.inf).amax(dim=-1)


def _typical_few(distances: Tensor, probabilities: Tensor, typical_p: Tensor) -> tuple[Tensor, Tensor]:
    """The distance up to which tokens reach probability typical_p, by sorting the nearest tokens only.

    distances, probabilities: [rows, vocab], float64. typical_p: [rows, 1], float64.
    Returns the distances, [rows, 1], and whether the sorted tokens were enough, [rows].
    """
    width = min(_TYPICAL_GUESS, distances.shape[1])
    nearest, order = distances.topk(width, dim=-1, largest=False)
    before = probabilities.gather(1, order).cumsum(dim=-1) < typical_p
    last = before.sum(dim=-1, keepdim=True).clamp_(max=width - 1)
    enough = ~before[:, -1] if width < distances.shape[1] else torch.ones_like(before[:, -1])
    return nearest.gather(1, last), enough


def _typical_many(distances: Tensor, probabilities: Tensor, typical_p: Tensor) -> Tensor:
    """The distance up to which tokens reach probability typical_p, for flat distributions: [rows, 1].

    Distances are divided into bins. Sums over the bins select the one bin whose tokens are sorted.
    """
    alive = probabilities > 0
    near = distances.amin(dim=-1, keepdim=True)
    span = distances.masked_fill(~alive, 0.0).amax(dim=-1, keepdim=True) - near
    places = (distances - near) / span.clamp_(min=torch.finfo(span.dtype).tiny) * _BINS
    bins = places.clamp_(max=_BINS - 1).long()
    sums = torch.zeros(len(bins), _BINS, dtype=distances.dtype, device=distances.device)
    reached = sums.scatter_add_(1, bins, probabilities).cumsum(dim=-1)
    which = (reached < typical_p).sum(dim=-1, keepdim=True).clamp_(max=_BINS - 1)
    inside = (bins == which) & alive
    count = inside.sum(dim=-1, keepdim=True)
    nearest, order = distances.masked_fill(~inside, torch.inf).topk(int(count.max()), dim=-1, largest=False)
    start = reached.gather(1, (which - 1).clamp_(min=0)) * (which > 0)
    own = (probabilities * inside).gather(1, order).cumsum(dim=-1) + start
    last = (own < typical_p).sum(dim=-1, keepdim=True)
    return nearest.gather(1, torch.minimum(last, count - 1))


def invert(scaled: Tensor, outside: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one kept token per row: invert the cumulative distribution of the kept tokens at `uniforms`.

    scaled: [rows, vocab], float32. outside: [rows, vocab], bool, dropped tokens. uniforms: [rows], float64, in [0, 1).
    Returns the tokens, [rows], int64.
    """
    weights = (scaled - scaled.amax(dim=-1, keepdim=True)).exp().masked_fill_(outside, 0.0)
    cumulative = weights.double().cumsum(dim=-1)
    total = cumulative[:, -1]
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    # The search ends beyond the vocabulary only where no token is kept. The caller then sees a logit of -inf.
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp_(max=scaled.shape[1] - 1)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
