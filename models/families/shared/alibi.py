"""The slopes of ALiBi's straight lines (Press et al. 2022, arXiv:2108.12409), in the two ways checkpoints have them.

For a number of heads that is a power of two both are the same; they fill up other numbers differently.
"""

from __future__ import annotations

import math


def bloom_slopes(heads: int) -> tuple[float, ...]:
    """Those of the power of two below, then every other one of the next power of two: Press's own code, and BLOOM."""
    below: int = 2 ** math.floor(math.log2(heads))
    between = _falling(2 * below)[::2]
    return (*_falling(below), *between[: heads - below])


def mpt_slopes(heads: int) -> tuple[float, ...]:
    """Of the power of two above, the even ones, then the odd ones, as many as there are heads."""
    above = _falling(2 ** math.ceil(math.log2(heads)))
    return above if len(above) == heads else (*above[1::2], *above[::2])[:heads]


def _falling(heads: int) -> tuple[float, ...]:
    """2^-(8 / heads), its square, its cube and so on."""
    return tuple(2 ** (-8 * (index + 1) / heads) for index in range(heads))
