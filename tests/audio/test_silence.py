"""Recordings are cut where they are quietest; the windows cover the recording and have a bounded length."""

from __future__ import annotations

import numpy as np
import pytest

from server.audio.silence import cut_at_silences

WINDOW = 3000


def loud(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.5, 0.1, (count, 80)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 2, 2999, 3000, 3001, 4501, 30_000, 30_001])
def test_windows_cover_the_recording(count: int) -> None:
    spans = cut_at_silences(loud(count), count, WINDOW)
    assert spans[0][0] == 0 and spans[-1][1] == count
    assert [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]]
    assert all(0 < end - start <= WINDOW and start % 2 == 0 for start, end in spans)
    assert all(end - start >= WINDOW // 2 for start, end in spans[:-1])


def test_windows_end_in_pauses() -> None:
    frames = loud(9000)
    pauses = [2100, 4800, 7000]
    for pause in pauses:
        frames[pause : pause + 40] = -0.5
    frames[2900:2904] = -1.0  # quiet, but too short for a pause
    spans = cut_at_silences(frames, 9000, WINDOW)
    assert all(any(pause <= end <= pause + 40 for pause in pauses) for _, end in spans[:-1]) and len(spans) == 4


def test_the_last_of_equal_pauses_is_taken() -> None:
    frames = loud(6000)
    for pause in (1600, 2200, 2800, 4400, 5600):
        frames[pause : pause + 40] = -0.5
    assert cut_at_silences(frames, 6000, WINDOW) == [(0, 2818), (2818, 5618), (5618, 6000)]
    frames[2200:2240] = -0.9  # a much quieter pause is better than a longer window
    assert cut_at_silences(frames, 6000, WINDOW)[0] == (0, 2218)


def test_frames_after_the_recording_do_not_count() -> None:
    frames = np.concatenate([loud(4000), np.full((2000, 80), -1.5, dtype=np.float32)])
    assert cut_at_silences(frames, 4000, WINDOW)[-1][1] == 4000
