"""From logits to one token a row. Every row has settings of its own, and its batch-mates change nothing.

Three filters of a sampled row are thresholds on its logits (after temperature): a token survives if it is not below.

- top_k: the k-th largest logit (Fan et al. 2018, arXiv:1805.04833).
- top_p: the smallest logit of the likeliest tokens that together reach top_p (Holtzman et al. 2020, arXiv:1904.09751);
  probabilities taken after top_k.
- min_p: the largest logit plus log(min_p) (Nguyen et al. 2024, arXiv:2407.01082).

A fourth looks at what these leave, renormalised:

- typical_p: the tokens whose surprise, -log p, is nearest to the entropy, until they together reach typical_p (Meister
  et al. 2023, arXiv:2202.00666, section 3): a threshold on the distance.

So tokens tied at a threshold live or die together, and no order of sorting can matter. The token is the inverse of the
cumulative distribution at a number that is a hash of (seed, position), so there is no generator with a state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models import ops
from models.ops.torch_sampling import Filters, invert, scale, thresholds

_TYPICAL_GUESS = 1024
"""How many of the nearest tokens are sorted before more is done for a row."""
_BINS = 4096
"""Into how many bins a flat row with typical_p goes, of which one is sorted."""


@dataclass(frozen=True, slots=True)
class SamplerRow(Filters):
    """How to choose one row's token. `position` counts the row's new tokens; the filters' defaults filter nothing."""

    typical_p: float = 1.0
    seed: int = 0
    position: int = 0

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= 0.0


def sample(logits: Tensor, rows: Sequence[SamplerRow]) -> Tensor:
    """One token id per row: [rows], int64; any, where all logits are -inf. logits: [rows, vocab], float32, kept."""
    sampled = [index for index, row in enumerate(rows) if not row.is_greedy]
    tokens = (
        ops.survey(logits).ids[:, 0] if len(sampled) < len(rows) else torch.empty_like(logits[:, 0], dtype=torch.int64)
    )
    plain = [index for index in sampled if rows[index].typical_p >= 1.0]
    typical = [index for index in sampled if rows[index].typical_p < 1.0]
    for indices, way in ((plain, ops.draw), (typical, _draw_typical)):
        if indices:
            settings = [rows[index] for index in indices]
            uniforms = uniform([row.seed for row in settings], [row.position for row in settings])
            where = torch.tensor(indices, device=logits.device)
            own = logits if len(indices) == len(rows) else logits[where]
            tokens[where] = way(own, settings, uniforms)[0]
    return tokens


def _draw_typical(logits: Tensor, rows: Sequence[SamplerRow], uniforms: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
    """Like `ops.draw`, with the fourth filter between."""
    scaled = scale(logits, rows)
    lowest = thresholds(scaled, rows)
    keep_typical(scaled, lowest, rows)
    return invert(scaled, lowest, torch.from_numpy(uniforms).to(logits.device)), lowest


def keep_typical(scaled: Tensor, lowest: Tensor, rows: Sequence[SamplerRow]) -> None:
    """Set to -inf what is not typical, in rows with typical_p. scaled: [rows, vocab], float32; lowest: [rows]."""
    filtered = [index for index, row in enumerate(rows) if row.typical_p < 1.0]
    if not filtered:
        return
    where = torch.tensor(filtered, device=scaled.device)
    kept = scaled[where]
    kept = kept.masked_fill(kept < lowest[where, None], -torch.inf)
    log_probs = kept.double().log_softmax(dim=-1)
    probabilities = log_probs.exp()
    entropy = torch.special.entr(probabilities).sum(dim=-1, keepdim=True)
    distances = (log_probs + entropy).abs()
    wanted = _column([rows[index].typical_p for index in filtered], distances)
    # A distribution has about exp(entropy) typical tokens: where they are few, only few are sorted.
    flat = entropy[:, 0] > math.log(_TYPICAL_GUESS / 4)
    if scaled.shape[1] <= _TYPICAL_GUESS:
        flat = torch.zeros_like(flat)
    farthest = torch.empty_like(wanted)
    peaked = (~flat).nonzero()[:, 0]
    if len(peaked):
        farthest[peaked], enough = _typical_few(distances[peaked], probabilities[peaked], wanted[peaked])
        flat[peaked] = ~enough
    many = flat.nonzero()[:, 0]
    if len(many):
        farthest[many] = _typical_many(distances[many], probabilities[many], wanted[many])
    scaled[where] = kept.masked_fill(distances > farthest, -torch.inf)


def _typical_few(distances: Tensor, probabilities: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The distance at which the nearest tokens reach `wanted`, by sorting the nearest; and whether those were enough.

    distances, probabilities: [rows, vocab], float64; wanted: [rows, 1].
    """
    width = min(_TYPICAL_GUESS, distances.shape[1])
    nearest, order = distances.topk(width, dim=-1, largest=False)
    before = probabilities.gather(1, order).cumsum(dim=-1) < wanted
    last = before.sum(dim=-1, keepdim=True).clamp_(max=width - 1)
    enough = ~before[:, -1] if width < distances.shape[1] else torch.ones_like(before[:, -1])
    return nearest.gather(1, last), enough


def _typical_many(distances: Tensor, probabilities: Tensor, wanted: Tensor) -> Tensor:
    """The same without sorting them all: probabilities summed in bins of distance tell which one bin to sort."""
    alive = probabilities > 0
    near = distances.amin(dim=-1, keepdim=True)
    span = distances.masked_fill(~alive, 0.0).amax(dim=-1, keepdim=True) - near
    places = (distances - near) / span.clamp_(min=torch.finfo(span.dtype).tiny) * _BINS
    bins = places.clamp_(max=_BINS - 1).long()
    sums = torch.zeros(len(bins), _BINS, dtype=distances.dtype, device=distances.device)
    reached = sums.scatter_add_(1, bins, probabilities).cumsum(dim=-1)
    which = (reached < wanted).sum(dim=-1, keepdim=True).clamp_(max=_BINS - 1)
    inside = (bins == which) & alive
    count = inside.sum(dim=-1, keepdim=True)
    nearest, order = distances.masked_fill(~inside, torch.inf).topk(int(count.max()), dim=-1, largest=False)
    start = reached.gather(1, (which - 1).clamp_(min=0)) * (which > 0)
    own = (probabilities * inside).gather(1, order).cumsum(dim=-1) + start
    last = (own < wanted).sum(dim=-1, keepdim=True)
    return nearest.gather(1, torch.minimum(last, count - 1))


def uniform(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """One number in [0, 1) for each (seed, position), from 53 bits of splitmix64 (Steele et al. 2014, OOPSLA)."""
    seed = np.array([value & 0xFFFFFFFFFFFFFFFF for value in seeds], dtype=np.uint64)
    counter = np.array(positions, dtype=np.uint64) + np.uint64(1)
    # The seed is hashed first, or neighbouring seeds would share a sequence at shifted positions.
    bits = _mix(_mix(seed + _GAMMA) + counter * _GAMMA)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
