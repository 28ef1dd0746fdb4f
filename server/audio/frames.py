"""A recording cut into pieces whose log-mel power the worker computes, and its frames put together and cut again.

The worker gives log10 of the power of each mel band; what is relative to the whole recording is done here: nothing is
more than 8 below the loudest place, and numbers are brought near -1..1.
Source: Radford et al. 2022, arXiv:2212.04356, section 2.2, and the code published with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 16_000
HOP_SAMPLES = 160
FRAMES_PER_SECOND = SAMPLE_RATE // HOP_SAMPLES
FRAMES_PER_TOKEN = 2
"""Of the frames that a model hears, and the tokens that its encoder makes of them."""

_HALF_WINDOW = 200
_RANGE = 8.0

Samples = NDArray[np.float32]
"""[samples], mono, from -1 to 1."""
Frames = NDArray[np.float32]
"""[frames, num_mels]."""


def pieces(samples: Samples, window_frames: int) -> list[Samples]:
    """Sound for the worker, `window_frames` frames each and the last one less; each with the half window around it.

    A recording shorter than a window is filled up with silence first; both ends are mirrored.
    """
    shortest = window_frames * HOP_SAMPLES
    whole = np.pad(samples, (0, max(shortest - len(samples), 0)))
    total = len(whole) // HOP_SAMPLES
    mirrored = np.pad(whole, _HALF_WINDOW, mode="reflect")
    found = []
    for first in range(0, total, window_frames):
        last = min(first + window_frames, total) - 1
        found.append(mirrored[first * HOP_SAMPLES : last * HOP_SAMPLES + 2 * _HALF_WINDOW])
    return found


def join(parts: Sequence[Frames]) -> Frames:
    """The frames of a whole recording, from the worker's of each piece."""
    power = np.concatenate(parts)
    frames: Frames = (np.maximum(power, power.max() - np.float32(_RANGE)) + np.float32(4.0)) / np.float32(4.0)
    return frames


def window(frames: Frames, start: int, window_frames: int) -> Frames:
    """The frames from `start` on, as many as a model hears at once; zeros where the recording has ended."""
    part = frames[start : start + window_frames]
    return np.pad(part, ((0, window_frames - len(part)), (0, 0)))


def num_frames(samples: Samples) -> int:
    """Frames that sound something: those of the recording itself, before any silence was added."""
    return -(-len(samples) // HOP_SAMPLES)
