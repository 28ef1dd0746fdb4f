"""Samples one token per row of logits. Each row has its own settings; other rows of the batch do not affect it.

Three filters are thresholds on the logits after temperature; a token is kept if its logit is not below the threshold:

- top_k: the k-th largest logit (Fan et al. 2018, arXiv:1805.04833).
- top_p: the smallest logit of the likeliest tokens that together reach top_p (Holtzman et al. 2020, arXiv:1904.09751);
  the probabilities are computed after top_k.
- min_p: the largest logit plus log(min_p) (Nguyen et al. 2024, arXiv:2407.01082).

A fourth filter uses the renormalised probabilities p of the remaining tokens:

- typical_p: the tokens whose -log p is nearest to the entropy, until they together reach typical_p (Meister et al.
  2023, arXiv:2202.00666, section 3). This is a threshold on the distance to the entropy.

Tokens with equal logits are kept or removed together, so the order of sorting does not matter. The token is drawn by
inverting the cumulative distribution at a random number. The number is a hash of (seed, position); no generator state
exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.backends.choice import backend
from models.backends.torch.sampling import Filters
from server.ipc.wire.params import GenerationParams

_FILTERS = tuple(field.name for field in fields(Filters))
"""Names of all filters. `GenerationParams` has a field of each name."""


@dataclass(frozen=True, slots=True)
class SamplerRow(Filters):
    """Sampling settings of one row.

    seed, position: determine the random number; `position` is the number of new tokens before it.
    """

    seed: int = 0
    position: int = 0

    @classmethod
    def of(cls, params: GenerationParams, seed: int, position: int) -> SamplerRow:
        """Sampling settings of a request for the token at a position. Greedy if the request has no `do_sample`.

        Eager steps and captured steps both convert a request with this method.
        """
        if not params.do_sample:
            return _GREEDY
        return cls(**{name: getattr(params, name) for name in _FILTERS}, seed=seed, position=position)

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= 0.0


_GREEDY = SamplerRow()


def sample(logits: Tensor, rows: Sequence[SamplerRow]) -> Tensor:
    """Choose one token per row: the one with the largest logit in a greedy row, a random one in the other rows.

    logits: [rows, vocab], float32; not changed.
    rows: settings of each row.
    Returns token ids: [rows], int64; undefined for a row whose logits are all -inf.
    """
    sampled = [index for index, row in enumerate(rows) if not row.is_greedy]
    tokens = (
        backend(logits).logits_top_k(logits).ids[:, 0]
        if len(sampled) < len(rows)
        else torch.empty_like(logits[:, 0], dtype=torch.int64)
    )
    if sampled:
        settings = [rows[index] for index in sampled]
        uniforms = uniform([row.seed for row in settings], [row.position for row in settings])
        where = torch.tensor(sampled, device=logits.device)
        own = logits if len(sampled) == len(rows) else logits[where]
        tokens[where] = backend(own).draw(own, settings, uniforms).tokens
    return tokens


def uniform(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """A uniform number in [0, 1) for each (seed, position): 53 bits of splitmix64 (Steele et al. 2014, OOPSLA)."""
    seed = np.array([value & 0xFFFFFFFFFFFFFFFF for value in seeds], dtype=np.uint64)
    counter = np.array(positions, dtype=np.uint64) + np.uint64(1)
    # The seed is hashed first; otherwise neighbouring seeds would give the same numbers at shifted positions.
    bits = _mix(_mix(seed + _GAMMA) + counter * _GAMMA)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
