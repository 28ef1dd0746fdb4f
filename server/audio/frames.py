"""Splits a recording for the log-mel computation in the worker, joins the log-mel frames, and takes windows of them.

The worker returns log10 of the power in each mel band. The scaling that depends on the whole recording is done here:
values below the maximum minus 8 are raised to this limit, then all values are scaled to about -1 to 1.
Source: Radford et al. 2022, arXiv:2212.04356, section 2.2, and the code published with it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 16_000
HOP_SAMPLES = 160
FRAMES_PER_SECOND = SAMPLE_RATE // HOP_SAMPLES
FRAMES_PER_TOKEN = 2
"""Input frames of the encoder per output position."""

_HALF_WINDOW = 200
_DYNAMIC_RANGE = 8.0

Samples = NDArray[np.float32]
"""Mono audio: [samples], float32, from -1 to 1."""
Frames = NDArray[np.float32]
"""Log-mel frames: [frames, num_mels], float32."""


def split_samples(samples: Samples, window_frames: int) -> list[Samples]:
    """Split a recording into inputs of the log-mel computation.

    The computation makes `window_frames` frames of each part, and fewer of the last one. A part includes half an
    analysis window of samples on both sides; at the ends of the recording, these are the mirror image of its samples.
    A recording of fewer than `window_frames` frames is first padded with silence.
    """
    min_samples = window_frames * HOP_SAMPLES
    if len(samples) < min_samples:
        samples = np.pad(samples, (0, min_samples - len(samples)))
    total = len(samples) // HOP_SAMPLES
    parts = []
    for first in range(0, total, window_frames):
        last = min(first + window_frames, total) - 1
        start, end = first * HOP_SAMPLES - _HALF_WINDOW, last * HOP_SAMPLES + _HALF_WINDOW
        part = samples[max(start, 0) : end]
        missing = max(-start, 0), max(end - len(samples), 0)
        parts.append(np.pad(part, missing, mode="reflect") if any(missing) else part)
    return parts


def join_log_mel(parts: list[Frames]) -> Frames:
    """Concatenate log-mel frames, one array for each part of `split_samples`, and scale them. Empties the list."""
    frames: Frames = np.empty((sum(map(len, parts)), parts[0].shape[1]), dtype=np.float32)
    end = len(frames)
    while parts:
        part = parts.pop()
        frames[end - len(part) : end] = part
        end -= len(part)
    np.maximum(frames, frames.max() - np.float32(_DYNAMIC_RANGE), out=frames)
    frames += np.float32(4.0)
    frames /= np.float32(4.0)
    return frames


def window(frames: Frames, start: int, window_frames: int) -> Frames:
    """`window_frames` frames from `start` on, with zeros after the end of the recording."""
    part = frames[start : start + window_frames]
    return np.pad(part, ((0, window_frames - len(part)), (0, 0)))


def second_bytes(num_mels: int) -> int:
    """Bytes of memory per second of a recording, for its samples and its log-mel frames."""
    return 4 * (SAMPLE_RATE + FRAMES_PER_SECOND * num_mels)


def num_frames(num_samples: int) -> int:
    """Number of frames of `num_samples` samples, rounded up, without the padding of `split_samples`."""
    return -(-num_samples // HOP_SAMPLES)
