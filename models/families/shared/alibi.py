"""Slopes of ALiBi (Press et al. 2022, arXiv:2108.12409), one per head, in the two variants that checkpoints use.

The variants have the same slopes if the number of heads is a power of two.
"""

from __future__ import annotations

import math


def bloom_slopes(heads: int) -> tuple[float, ...]:
    """Slopes for `heads` heads as in BLOOM and in the paper's code.

    First come all slopes for the largest power of two that does not exceed `heads`. The remaining heads get the slopes
    for the next power of two at the indices 0, 2, 4 and so on.
    """
    below: int = 2 ** math.floor(math.log2(heads))
    between = _geometric(2 * below)[::2]
    return (*_geometric(below), *between[: heads - below])


def mpt_slopes(heads: int) -> tuple[float, ...]:
    """Slopes for `heads` heads as in MPT.

    If `heads` is a power of two, these are the slopes of the paper. Otherwise they are taken from the slopes for the
    next larger power of two: first those at the indices 1, 3, 5 and so on, then those at 0, 2, 4 and so on.
    """
    above = _geometric(2 ** math.ceil(math.log2(heads)))
    return above if len(above) == heads else (*above[1::2], *above[::2])[:heads]


def _geometric(heads: int) -> tuple[float, ...]:
    """The slopes of the paper for `heads` heads, a power of two: `2 ** (-8 * i / heads)` for i from 1 to `heads`."""
    return tuple(2 ** (-8 * (index + 1) / heads) for index in range(heads))
