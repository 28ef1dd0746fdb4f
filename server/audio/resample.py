"""Samples at one rate to samples at another, by a windowed sinc in its polyphase form.

The rate is changed by `up / down` in lowest terms: as if `up - 1` zeros were put between samples, everything above the
lower one of the two Nyquist frequencies taken away by one filter, and every `down`-th sample kept. Of the filter only
those taps are computed that meet a sample: each of `up` phases is a short filter of its own.
Source: Crochiere and Rabiner 1983, Multirate Digital Signal Processing, chapter 2; the window is Kaiser's (1974).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from server.audio.frames import Samples

ZERO_CROSSINGS = 16
"""Of the sinc, on each side."""
KAISER_BETA = 8.6
"""Stop band about 86 dB down."""


def resample(samples: Samples, rate: int, wanted: int) -> Samples:
    """[samples] at `rate` Hz -> [ceil(samples * wanted / rate)] at `wanted` Hz; zeros beyond both ends."""
    divisor = math.gcd(rate, wanted)
    up, down = wanted // divisor, rate // divisor
    if up == down:
        return samples
    filtering = low_pass(up, down)
    half = len(filtering) // 2
    count = -(-len(samples) * up // down)
    taps = -(-len(filtering) // up)
    padded = np.pad(samples.astype(np.float64), (taps, taps + down))
    result = np.empty(count, dtype=np.float32)
    for phase in range(min(up, count)):
        # Output `n` stands at `n * down` of the stuffed samples; it meets those at `k * up` that the filter reaches.
        place = phase * down + half
        newest, offset = divmod(place, up)
        own = filtering[offset::up]
        rows = -(-(count - phase) // up)
        first = taps + newest - len(own) + 1
        seen = np.lib.stride_tricks.sliding_window_view(padded[first:], len(own))[: (rows - 1) * down + 1 : down]
        result[phase::up] = seen @ own[::-1]
    return result


def low_pass(up: int, down: int) -> NDArray[np.float64]:
    """The filter at the stuffed rate, symmetric, of odd length; it passes a constant as `up` times itself."""
    slower = max(up, down)
    half = ZERO_CROSSINGS * slower
    times = np.arange(-half, half + 1)
    shape = np.sinc(times / slower) * np.kaiser(2 * half + 1, KAISER_BETA)
    return np.asarray(shape * (up / shape.sum()), dtype=np.float64)
