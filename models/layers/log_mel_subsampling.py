"""Embedding of raw audio by normalised log-mel frames and convolutions of stride 2 (FastConformer)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.config import LogMelSubsamplingConfig
from models.layers.linear import Linear, parameter
from models.layers.log_mel import HOP_SAMPLES, WINDOW_SAMPLES, mel_filters
from models.steps.batch import WaveformBatch

TRANSFORM_SAMPLES = 512
"""Number of samples of a Fourier transform: a window, with zeros on both sides."""
PREEMPHASIS = 0.97
_POWER_GUARD, _DEVIATION_GUARD = 2**-24, 1e-5


def normalised_log_mel(samples: Tensor, window: Tensor, filters: Tensor) -> Tensor:
    """Log-mel frames of a recording, each band with a mean of zero and a variance of one.

    samples: [samples], float, 16 kHz, at least `HOP_SAMPLES`. window: [400], filters: [257, bands], dtype of the
        samples.
    Returns [samples // 160, bands], of the dtype of the samples.
    Source: published code of NVIDIA NeMo, `AudioToMelSpectrogramPreprocessor`, and `ParakeetFeatureExtractor`.
    """
    sharpened = torch.cat([samples[:1], samples[1:] - PREEMPHASIS * samples[:-1]])
    spectrum = torch.stft(
        sharpened,
        TRANSFORM_SAMPLES,
        HOP_SAMPLES,
        WINDOW_SAMPLES,
        window,
        center=True,
        pad_mode="constant",
        return_complex=True,
    )
    power = torch.view_as_real(spectrum).square().sum(-1)[:, : len(samples) // HOP_SAMPLES]
    frames = (power.T @ filters + _POWER_GUARD).log()
    mean = frames.mean(0)
    deviation = ((frames - mean).square().sum(0) / max(len(frames) - 1, 1)).sqrt()
    return (frames - mean) / (deviation + _DEVIATION_GUARD)


def _noise(count: int) -> Tensor:
    """Noise for a recording of `count` samples: [count], float32, on the CPU. Equal lengths give equal noise.

    Source: `CohereAsrFeatureExtractor` of transformers.
    """
    return torch.randn(count, generator=torch.Generator().manual_seed(count))


class PlaneConvolution(nn.Module):
    """Convolution over time and frequency.

    weight: [out, in / groups, size, size], model dtype. bias: [out], model dtype.
    forward: [1, in, frames, bands] -> [1, out, ceil(frames / stride), ceil(bands / stride)].
    """

    def __init__(self, out_size: int, in_size: int, size: int, stride: int, groups: int) -> None:
        super().__init__()
        self.weight, self.bias = parameter(out_size, in_size // groups, size, size), parameter(out_size)
        self.stride, self.groups, self.padding = stride, groups, (size - 1) // 2

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, groups=self.groups)


class LogMelSubsampling(nn.Module):
    """Log-mel frames, then convolutions that each halve the numbers of frames and bands, then a projection.

    Each convolution except the first consists of one with separate weights per channel, and one across the channels. A
    ReLU follows each convolution. Each recording is computed separately; log-mel frames are computed in float32.
    Source: Rekesh et al. 2023, arXiv:2305.05084, section 3.
    """

    def __init__(self, config: LogMelSubsamplingConfig, hidden_size: int) -> None:
        super().__init__()
        channels, kernel = config.channels, config.kernel
        self.scale, self.dither = config.scale, config.dither
        convolutions = [PlaneConvolution(channels, 1, kernel, 2, 1)]
        for _ in range(config.num_halvings - 1):
            convolutions.append(PlaneConvolution(channels, channels, kernel, 2, channels))
            convolutions.append(PlaneConvolution(channels, channels, 1, 1, 1))
        self.convolutions = nn.ModuleList(convolutions)
        self.projection = Linear(channels * (config.num_mels >> config.num_halvings), hidden_size, bias=True)
        self._window = torch.hann_window(WINDOW_SAMPLES, periodic=False, device="cpu")
        self._filters = mel_filters(config.num_mels, TRANSFORM_SAMPLES)

    def embed(self, batch: WaveformBatch) -> Tensor:
        """Compute the hidden states that enter the first layer: [tokens, hidden], model dtype."""
        if self._window.device != batch.samples.device:
            self._window, self._filters = (x.to(batch.samples.device) for x in (self._window, self._filters))
        return torch.cat([self._states(part) for part in torch.split(batch.samples, list(batch.sample_lengths))])

    def frames(self, samples: Tensor) -> Tensor:
        """Add noise if configured, and compute normalised log-mel frames.

        samples: [samples], float32. Returns [samples // 160, bands], float32.
        """
        if self.dither:
            samples = samples + self.dither * _noise(len(samples)).to(samples.device)
        return normalised_log_mel(samples, self._window, self._filters)

    @property
    def dtype(self) -> torch.dtype:
        """The model dtype, in which the convolutions are computed."""
        first = self.convolutions[0]
        assert isinstance(first, PlaneConvolution)
        return first.weight.dtype

    def _states(self, samples: Tensor) -> Tensor:
        """Compute the hidden states of one recording: [samples], float32 -> [tokens, hidden], model dtype."""
        x = self.frames(samples)[None, None].to(self.dtype)
        for index, convolution in enumerate(self.convolutions):
            x = convolution(x)
            # No activation separates a convolution of each channel from the convolution across channels after it.
            if index % 2 == 0:
                x = F.relu(x)
        output: Tensor = self.projection(x[0].transpose(0, 1).flatten(1)) * self.scale
        return output
