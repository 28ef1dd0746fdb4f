"""From sound to what a speech model reads: the power of each mel band every 10 ms, in powers of ten.

Source: Radford et al. 2022, arXiv:2212.04356, section 2.2; the mel scale is Slaney's (Auditory Toolbox, Interval
Technical Report 1998-010): linear up to 1000 Hz, logarithmic above, each triangle of unit area.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SAMPLE_RATE = 16_000
WINDOW_SAMPLES = 400
HOP_SAMPLES = 160
FLOOR = 1e-10

_LINEAR_HZ = 200 / 3
"""Width of a mel below 1000 Hz."""
_LOG_STEP = math.log(6.4) / 27
"""Logarithm of the ratio of two frequencies a mel apart above 1000 Hz."""


class LogMel:
    """Holds no parameters; window and filters follow the device of the sound. num_mels: bands from 0 to 8000 Hz."""

    def __init__(self, num_mels: int) -> None:
        self.num_mels = num_mels
        self._window = torch.hann_window(WINDOW_SAMPLES, device="cpu")
        self._filters = mel_filters(num_mels)

    def __call__(self, samples: Tensor) -> Tensor:
        """[samples], float32, at 16 kHz -> [frames, num_mels], float32: log10 of each band's power, at least -10.

        A frame needs its whole window: n + 1 frames come of `400 + 160 n` samples. Where a recording begins and ends,
        the caller has mirrored it.
        """
        if self._window.device != samples.device:
            self._window, self._filters = self._window.to(samples.device), self._filters.to(samples.device)
        spectrum = torch.stft(
            samples, WINDOW_SAMPLES, HOP_SAMPLES, window=self._window, center=False, return_complex=True
        )
        power = spectrum.abs() ** 2
        return (power.T @ self._filters).clamp(min=FLOOR).log10()


def mel_filters(num_mels: int) -> Tensor:
    """[frequencies, num_mels], float32, on the CPU: how much of each of the 201 frequencies a band takes."""
    frequencies = torch.linspace(0, SAMPLE_RATE / 2, WINDOW_SAMPLES // 2 + 1, dtype=torch.float64, device="cpu")
    highest = 15 + math.log(SAMPLE_RATE / 2 / 1000) / _LOG_STEP
    corners = _hertz(torch.linspace(0, highest, num_mels + 2, dtype=torch.float64, device="cpu"))
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    rising = (frequencies[:, None] - left) / (middle - left)
    falling = (right - frequencies[:, None]) / (right - middle)
    return (torch.minimum(rising, falling).clamp(min=0) * 2 / (right - left)).float()


def _hertz(mels: Tensor) -> Tensor:
    return torch.where(mels < 15, mels * _LINEAR_HZ, 1000 * torch.exp((mels - 15) * _LOG_STEP))
