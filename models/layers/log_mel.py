"""Log-mel spectrogram: the input of a speech model, computed from audio samples.

A frame holds the base-10 logarithm of the power in each mel band. There is one frame every 10 ms.
Source: Radford et al. 2022, arXiv:2212.04356, section 2.2. The mel scale is Slaney's (Auditory Toolbox, Interval
Technical Report 1998-010): linear up to 1000 Hz, logarithmic above; every triangular filter has unit area.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SAMPLE_RATE = 16_000
WINDOW_SAMPLES = 400
HOP_SAMPLES = 160
MIN_POWER = 1e-10

_LINEAR_HZ_PER_MEL = 200 / 3
"""Width of one mel, in Hz, below 1000 Hz."""
_LOG_STEP_PER_MEL = math.log(6.4) / 27
"""Natural logarithm of the ratio between two frequencies that are one mel apart, above 1000 Hz."""


class LogMel:
    """Computes log-mel frames. Has no parameters. The window and the filters move to the device of the samples.

    num_mels: number of mel bands between 0 and 8000 Hz.
    """

    def __init__(self, num_mels: int) -> None:
        self.num_mels = num_mels
        self._window = torch.hann_window(WINDOW_SAMPLES, device="cpu")
        self._filters = mel_filters(num_mels)

    def __call__(self, samples: Tensor) -> Tensor:
        """Compute the frames whose windows lie completely inside the samples.

        samples: [samples], float32, 16 kHz. The caller has padded both ends of a recording by reflection.
        Returns [frames, num_mels], float32: log10 of the power, at least -10. `400 + 160 n` samples give n + 1 frames.
        """
        if self._window.device != samples.device:
            self._window, self._filters = self._window.to(samples.device), self._filters.to(samples.device)
        spectrum = torch.stft(
            samples, WINDOW_SAMPLES, HOP_SAMPLES, window=self._window, center=False, return_complex=True
        )
        power = spectrum.abs() ** 2
        return (power.T @ self._filters).clamp(min=MIN_POWER).log10()


def mel_filters(num_mels: int, transform_samples: int = WINDOW_SAMPLES) -> Tensor:
    """Weights of the frequencies in each mel band: [transform_samples / 2 + 1, num_mels], float32, on the CPU.

    transform_samples: number of samples of a Fourier transform.
    """
    frequencies = torch.linspace(0, SAMPLE_RATE / 2, transform_samples // 2 + 1, dtype=torch.float64, device="cpu")
    highest = 15 + math.log(SAMPLE_RATE / 2 / 1000) / _LOG_STEP_PER_MEL
    corners = _hertz(torch.linspace(0, highest, num_mels + 2, dtype=torch.float64, device="cpu"))
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    rising = (frequencies[:, None] - left) / (middle - left)
    falling = (right - frequencies[:, None]) / (right - middle)
    return (torch.minimum(rising, falling).clamp(min=0) * 2 / (right - left)).float()


def _hertz(mels: Tensor) -> Tensor:
    return torch.where(mels < 15, mels * _LINEAR_HZ_PER_MEL, 1000 * torch.exp((mels - 15) * _LOG_STEP_PER_MEL))
