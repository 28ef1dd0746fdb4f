"""Embedding of raw audio by three convolutions. The first is followed by a norm over the recording (Moonshine)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.config import NormedWaveformEmbeddingConfig
from models.layers.linear import ConvolutionWeights, parameter
from models.steps.batch import WaveformBatch

_EPSILON = 1e-5
"""Epsilon of the norm of a recording. Checkpoints have no setting for it."""


class RecordingNorm(nn.Module):
    """Normalise all values of a recording together; then scale and shift each channel.

    weight, bias: [channels], model dtype.
    forward: [1, channels, outputs] -> the same.
    Source: Wu and He 2018, arXiv:1803.08494, with one group.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = parameter(channels)
        self.bias = parameter(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, 1, self.weight, self.bias, _EPSILON)


class NormedWaveformEmbedding(nn.Module):
    """Hidden states from the samples of recordings, by convolutions.

    Tanh and `RecordingNorm` follow the first convolution, GELU follows each later convolution.

    Each recording is computed separately, so that its hidden states do not depend on the batch.
    Source: Jeffries et al. 2024, arXiv:2410.15608, section 3.
    """

    def __init__(self, config: NormedWaveformEmbeddingConfig) -> None:
        super().__init__()
        self.strides = config.strides
        inputs = (1, *config.widths)
        shapes = zip(config.widths, inputs, config.kernels, strict=False)
        self.convolutions = nn.ModuleList(
            ConvolutionWeights(*shape, bias=index > 0) for index, shape in enumerate(shapes)
        )
        self.recording_norm = RecordingNorm(config.widths[0])

    def embed(self, batch: WaveformBatch) -> Tensor:
        """Compute the hidden states that enter the first layer: [tokens, hidden], model dtype."""
        samples = batch.samples.to(self.recording_norm.weight.dtype)
        return torch.cat([self._convolved(part) for part in torch.split(samples, list(batch.sample_lengths))])

    def _convolved(self, samples: Tensor) -> Tensor:
        """Convolve one recording: [samples] -> [tokens, hidden]."""
        x = samples[None, None]
        for index, (convolution, stride) in enumerate(zip(self.convolutions, self.strides, strict=True)):
            assert isinstance(convolution, ConvolutionWeights)
            x = F.conv1d(x, convolution.weight, convolution.bias, stride=stride)
            x = self.recording_norm(torch.tanh(x)) if index == 0 else F.gelu(x)
        return x[0].T
