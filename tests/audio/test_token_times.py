"""The start times of tokens, found by dynamic time warping, equal those of transformers, even with NaN."""

from __future__ import annotations

import numpy as np
import pytest
from transformers.models.whisper.generation_whisper import _dynamic_time_warping

from server.audio.token_times import first_positions, token_times


def reference(costs: np.ndarray) -> np.ndarray:
    rows, columns = _dynamic_time_warping(costs)
    return columns[np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)]


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 2), (5, 40), (40, 5), (33, 33), (60, 150)])
def test_paths_equal_transformers(shape: tuple[int, int]) -> None:
    for seed in range(6):
        generator = np.random.default_rng(seed)
        costs = -generator.normal(size=shape).astype(np.float32).astype(np.float64)
        if seed == 4:
            costs = np.round(costs)
        if seed == 5:
            costs[:, generator.random(shape[1]) < 0.1] = np.nan
        np.testing.assert_array_equal(first_positions(costs), reference(costs))


def test_the_last_token_has_the_time_of_the_one_before() -> None:
    weights = np.zeros((3, 10), dtype="<f4")
    weights[[0, 1, 2], [1, 4, 8]] = 1
    times = token_times(weights.tobytes(), 10, 4)
    assert len(times) == 4 and times[2] == times[3] and times == sorted(times) and times[0] == 0.0
    assert token_times(b"", 10, 1) == [0.0] and token_times(b"", 10, 0) == []
