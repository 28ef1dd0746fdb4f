"""Cuts a recording into windows at its quietest places, so that the windows can be transcribed at the same time.

A window is as long as possible, but it ends in a pause: the last one of the quietest pauses in its second half. Fewer
and longer windows take less time, and give the model more context. Only loudness is measured, not speech. A recording
without pauses is therefore cut where it is least loud.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from server.audio.frames import FRAMES_PER_SECOND, FRAMES_PER_TOKEN, HOP_SAMPLES, Frames, Samples

SMOOTHED_FRAMES = FRAMES_PER_SECOND // 5
"""Loudness is the mean over 0.2 s, so that a gap between two sounds of a word is not a pause."""

QUIET_SHARE = 0.1
"""A frame is quiet if its loudness is at most `min + QUIET_SHARE * (mean - min)`, over the frames that are searched."""
_MIN_POWER = 1e-10


def cut_at_silences(frames: Frames, num_frames: int, window_frames: int) -> list[tuple[int, int]]:
    """First frame and end of each window, in order. Together the windows cover the recording.

    frames: log-mel frames.
    num_frames: number of frames that belong to the recording; the frames after them are padding.
    window_frames: length of the longest window in frames. All windows but the last are at least half as long. All
        windows begin at an even frame.
    """
    loudness = _loudness(frames[:num_frames])
    spans = []
    start = 0
    while num_frames - start > window_frames:
        first, last = start + window_frames // 2, start + window_frames
        quietest = first + _last_pause(loudness[first : last + 1])
        end = max(quietest - quietest % FRAMES_PER_TOKEN, first - first % FRAMES_PER_TOKEN, start + FRAMES_PER_TOKEN)
        spans.append((start, end))
        start = end
    spans.append((start, num_frames))
    return spans


def _last_pause(loudness: NDArray[np.float64]) -> int:
    """Index of the frame in the middle of the last quiet part. loudness: [frames]."""
    lowest = loudness.min()
    quiet = np.flatnonzero(loudness <= lowest + QUIET_SHARE * (loudness.mean() - lowest))
    gaps = np.flatnonzero(np.diff(quiet) > 1)
    first = quiet[gaps[-1] + 1] if len(gaps) else quiet[0]
    return int(first + quiet[-1]) // 2


def loudness_frames(samples: Samples) -> Frames:
    """Log10 of the mean power in each frame of 10 ms: [frames, 1], float32. Used like log-mel frames of one band.

    If the last frame is incomplete, it is filled up with zeros.
    """
    padded = np.pad(samples, (0, -len(samples) % HOP_SAMPLES))
    power = np.square(padded).reshape(-1, HOP_SAMPLES).mean(axis=1, keepdims=True)
    return np.asarray(np.log10(np.maximum(power, _MIN_POWER)), dtype=np.float32)


def _loudness(frames: Frames) -> NDArray[np.float64]:
    """Loudness of each frame: the mean of its log-mel bands, averaged over the frames around it."""
    sums = np.concatenate([[0.0], np.cumsum(frames.mean(axis=1, dtype=np.float64))])
    places = np.arange(len(frames))
    begin = np.maximum(places - SMOOTHED_FRAMES // 2, 0)
    end = np.minimum(places + SMOOTHED_FRAMES // 2 + 1, len(frames))
    return np.asarray((sums[end] - sums[begin]) / (end - begin), dtype=np.float64)
