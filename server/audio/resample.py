"""Changes the sample rate of a recording with a polyphase windowed-sinc filter.

The ratio of the rates is `up / down` in lowest terms. In principle, `up - 1` zeros are inserted after each sample, a
low-pass filter removes all frequencies above the lower Nyquist frequency, and every `down`-th sample is kept. Only the
filter taps that fall on a sample are computed: each of the `up` phases uses its own short filter. Sources: Crochiere
and Rabiner 1983, Multirate Digital Signal Processing, chapter 2; Kaiser 1974 for the window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from server.audio.frames import Samples

ZERO_CROSSINGS = 16
"""Number of zero crossings of the sinc on each side of its centre."""
KAISER_BETA = 8.6
"""Shape of the Kaiser window. This value attenuates the stop band by about 86 dB."""
_TAPS_AT_ONCE = 1 << 16
"""Number of filter taps that are in memory together. Rates without a common divisor need millions of taps."""


def resample(samples: Samples, rate: int, target_rate: int) -> Samples:
    """Resample from `rate` Hz to `target_rate` Hz. Samples beyond both ends count as zeros.

    samples: [samples], float32.
    Returns [ceil(samples * target_rate / rate)], float32.
    """
    divisor = math.gcd(rate, target_rate)
    up, down = target_rate // divisor, rate // divisor
    if up == down:
        return samples
    half = ZERO_CROSSINGS * max(up, down)
    count = -(-len(samples) * up // down)
    taps_per_phase = -(-(2 * half + 1) // up)
    padded = np.zeros(len(samples) + 2 * taps_per_phase + down, dtype=np.float64)
    padded[taps_per_phase : taps_per_phase + len(samples)] = samples
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps_per_phase)
    result = np.empty(count, dtype=np.float32)
    inverse = pow(down, -1, up)
    for offset, taps in _phases(up, down):
        # Output n is at position n * down of the zero-stuffed signal, whose samples are at the multiples of `up`.
        phase = (offset - half) * inverse % up
        if phase < count:
            newest = (phase * down + half) // up
            rows = -(-(count - phase) // up)
            result[phase::up] = windows[newest + 1 :][: (rows - 1) * down + 1 : down] @ taps[::-1]
    return result


def _phases(up: int, down: int) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """The filter at the zero-stuffed rate, cut into phases: (offset, every `up`-th tap from `offset` on).

    The whole filter is symmetric, and its gain at frequency 0 is `up`.
    """
    spacing = max(up, down)
    half = ZERO_CROSSINGS * spacing
    total = sum(
        float(_shape(np.arange(first, min(first + _TAPS_AT_ONCE, half + 1)), spacing).sum())
        for first in range(-half, half + 1, _TAPS_AT_ONCE)
    )
    steps = up * np.arange(-(-(2 * half + 1) // up))
    offsets_at_once = max(1, _TAPS_AT_ONCE // len(steps))
    for first in range(0, up, offsets_at_once):
        offsets = np.arange(first, min(first + offsets_at_once, up))
        yield from zip(offsets.tolist(), _shape(offsets[:, None] + steps - half, spacing) * (up / total), strict=True)


def _shape(times: NDArray[np.int64], spacing: int) -> NDArray[np.float64]:
    """A sinc multiplied by a Kaiser window; 0 outside of the window.

    times: distances from the centre of the window, in samples of the signal with inserted zeros.
    spacing: distance between two zero crossings of the sinc, in the same unit.
    Returns an array like `times`, float64.
    """
    inside = 1 - (times / (ZERO_CROSSINGS * spacing)) ** 2
    window = np.where(inside >= 0, np.i0(KAISER_BETA * np.sqrt(np.maximum(inside, 0))) / np.i0(KAISER_BETA), 0)
    return np.asarray(np.sinc(times / spacing) * window, dtype=np.float64)
