"""Change the sample rate with a polyphase windowed-sinc filter.

The ratio of the rates is `up / down` in lowest terms. In principle, `up - 1` zeros are inserted after each sample, a
low-pass filter removes everything above the lower Nyquist frequency, and every `down`-th sample is kept. Only the
filter taps that fall on a sample are computed: each of the `up` phases uses its own short filter. Sources: Crochiere
    and Rabiner 1983, Multirate Digital Signal Processing, chapter 2; Kaiser 1974 for the window.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from server.audio.frames import Samples

ZERO_CROSSINGS = 16
"""Zero crossings of the sinc on each side."""
KAISER_BETA = 8.6
"""Attenuation of the stop band: about 86 dB."""


def resample(samples: Samples, rate: int, target_rate: int) -> Samples:
    """Resample from `rate` Hz to `target_rate` Hz. Samples beyond both ends count as zeros.

    samples: [samples], float32.
    Returns [ceil(samples * target_rate / rate)], float32.
    """
    divisor = math.gcd(rate, target_rate)
    up, down = target_rate // divisor, rate // divisor
    if up == down:
        return samples
    taps = low_pass(up, down)
    half = len(taps) // 2
    count = -(-len(samples) * up // down)
    taps_per_phase = -(-len(taps) // up)
    padded = np.zeros(len(samples) + 2 * taps_per_phase + down, dtype=np.float64)
    padded[taps_per_phase : taps_per_phase + len(samples)] = samples
    result = np.empty(count, dtype=np.float32)
    for phase in range(min(up, count)):
        # Output n is at position n * down of the zero-stuffed signal, whose samples are at the multiples of `up`.
        newest, offset = divmod(phase * down + half, up)
        phase_taps = taps[offset::up]
        rows = -(-(count - phase) // up)
        first = taps_per_phase + newest - len(phase_taps) + 1
        windows = np.lib.stride_tricks.sliding_window_view(padded[first:], len(phase_taps))
        result[phase::up] = windows[: (rows - 1) * down + 1 : down] @ phase_taps[::-1]
    return result


def low_pass(up: int, down: int) -> NDArray[np.float64]:
    """The filter at the zero-stuffed rate: symmetric, odd length, gain `up` at frequency 0."""
    spacing = max(up, down)
    half = ZERO_CROSSINGS * spacing
    times = np.arange(-half, half + 1)
    shape = np.sinc(times / spacing) * np.kaiser(2 * half + 1, KAISER_BETA)
    return np.asarray(shape * (up / shape.sum()), dtype=np.float64)
