"""Decay between the tokens of a chunk, for mixers."""

from __future__ import annotations

import torch
from torch import Tensor


def segment_sums(x: Tensor) -> Tensor:
    """Sums of the values after token j up to token i, and minus infinity where j is after i.

    Added up separately for each j. A difference of two sums from the start of the chunk would lose digits where both
    are large.

    x: [heads, tokens], float32.
    Returns [heads, tokens (i), tokens (j)], float32.
    """
    tokens = x.shape[-1]
    after = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).tril(-1)
    sums = x[..., None].expand(*x.shape, tokens).masked_fill(~after, 0).cumsum(-2)
    return sums.masked_fill(after.T, -torch.inf)
