"""Finds the times of tokens from the cross-attention weights of a speech model, by dynamic time warping.

The weights are a matrix of tokens and source positions. A path through it follows the largest weights, and never goes
back to an earlier token or position. It shows when each token was spoken. Gives the same times as
`_extract_token_timestamps` of `transformers` 5.
Source: Radford et al. 2022, arXiv:2212.04356, and the code published with it (`timing.py`); Sakoe and Chiba 1978.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SECONDS_PER_POSITION = 0.02
_DIAGONAL, _UP, _LEFT = 0, 1, 2


def token_times(weights: bytes, source_tokens: int, num_tokens: int) -> list[float]:
    """The time at which each new token of a window ends, in seconds from the start of the window.

    weights: float32, little-endian, [num_tokens - 1, source_tokens], from `Hypothesis.attention`.
    num_tokens: number of new tokens, end token included. The last token has no weights, so it gets the time of the
        token before it.
    """
    if num_tokens < 2:
        return [0.0] * num_tokens
    matrix = np.frombuffer(weights, dtype="<f4").reshape(num_tokens - 1, source_tokens)
    times = (first_positions(-matrix.astype(np.float64)) * SECONDS_PER_POSITION).tolist()
    return [*times, times[-1]]


def first_positions(costs: NDArray[np.float64]) -> NDArray[np.int64]:
    """The first column that the cheapest path visits in each row.

    costs: [rows, columns], float64, both at least 1. The path leads from the first cell to the last. Each step goes one
    cell to the right, down, or both. Among equally good steps, a step to the right is preferred, then a step down.
    """
    steps = _steps(costs)
    row, column = costs.shape
    found = np.empty(row, dtype=np.int64)
    while row > 0:
        step = steps[row, column] if column else _UP
        found[row - 1] = column - 1
        row -= step != _LEFT
        column -= step != _UP
    return found


def _steps(costs: NDArray[np.float64]) -> NDArray[np.int8]:
    """The last step of the cheapest path to each cell: [rows + 1, columns + 1].

    Sums are float32, as in the published code. Cells of one antidiagonal do not depend on each other, so they
    are computed together: entry i of `sums` is the cell of row i.
    """
    rows, columns = costs.shape
    steps = np.full((rows + 1, columns + 1), _LEFT, dtype=np.int8)
    infinity = np.float32(np.inf)
    before, last = np.full(rows + 1, infinity), np.full(rows + 1, infinity)
    before[0] = 0
    for diagonal in range(2, rows + columns + 1):
        row = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        column = diagonal - row
        slant, up, left = before[row - 1], last[row - 1], last[row]
        step = np.where((up < slant) & (up < left), _UP, _LEFT)
        step[(slant < up) & (slant < left)] = _DIAGONAL
        least = np.choose(step, (slant, up, left))
        current = np.full(rows + 1, infinity)
        current[row] = (costs[row - 1, column - 1] + least).astype(np.float32)
        steps[row, column] = step
        before, last = last, current
    return steps
