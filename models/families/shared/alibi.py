"""Slopes of ALiBi (Press et al. 2022, arXiv:2108.12409), in the two variants that checkpoints use.

The variants agree if the number of heads is a power of two.
"""

from __future__ import annotations

import math


def bloom_slopes(heads: int) -> tuple[float, ...]:
    """Slopes of BLOOM and of the paper's code.

    They are the slopes for the largest power of two up to `heads`, then every other slope for the next power of two.
    """
    below: int = 2 ** math.floor(math.log2(heads))
    between = _geometric(2 * below)[::2]
    return (*_geometric(below), *between[: heads - below])


def mpt_slopes(heads: int) -> tuple[float, ...]:
    """Slopes of MPT: of the slopes for the next power of two, first the ones at indices 1, 3..., then at 0, 2...

    If `heads` is a power of two, all its slopes in their own order.
    """
    above = _geometric(2 ** math.ceil(math.log2(heads)))
    return above if len(above) == heads else (*above[1::2], *above[::2])[:heads]


def _geometric(heads: int) -> tuple[float, ...]:
    """The powers 1 to `heads` of 2^(-8 / heads)."""
    return tuple(2 ** (-8 * (index + 1) / heads) for index in range(heads))
