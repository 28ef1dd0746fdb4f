"""Embedding of raw audio by frames of samples and causal convolutions (streaming Moonshine)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.config import FramedWaveformEmbeddingConfig
from models.layers.linear import ConvolutionWeights, Linear, parameter
from models.steps.batch import WaveformBatch

_EPSILON = 1e-6
"""Epsilon of the normalisation of a frame. Checkpoints have no setting for it."""
_STRIDE = 2


class FramedWaveformEmbedding(nn.Module):
    """Frames of samples, scaled to mean 0 and variance 1, then compressed, projected, and convolved twice.

    log_scale: [], model dtype: logarithm of the factor before the compression. Frames are compressed in float32.
    The convolutions are causal, so no state depends on later frames. Each recording is computed separately.
    """

    def __init__(self, config: FramedWaveformEmbeddingConfig) -> None:
        super().__init__()
        self.frame_samples = config.frame_samples
        self.log_scale = parameter()
        self.frames = Linear(config.frame_samples, config.channels, bias=False)
        widths = (config.channels, 2 * config.channels, config.channels)
        self.convolutions = nn.ModuleList(
            ConvolutionWeights(widths[index + 1], widths[index], config.kernel) for index in range(2)
        )

    def embed(self, batch: WaveformBatch) -> Tensor:
        """Compute the hidden states that enter the first layer: [tokens, hidden], model dtype."""
        return torch.cat([self._states(part) for part in torch.split(batch.samples, list(batch.sample_lengths))])

    def _states(self, samples: Tensor) -> Tensor:
        """Compute the hidden states of one recording: [samples], float32 -> [tokens, hidden], model dtype."""
        whole = len(samples) // self.frame_samples
        frames = samples[: whole * self.frame_samples].view(whole, self.frame_samples)
        frames = frames - frames.mean(1, keepdim=True)
        frames = frames / (frames.square().mean(1, keepdim=True) + _EPSILON).sqrt()
        x = torch.asinh(self.log_scale.float().exp() * frames).to(self.log_scale.dtype)
        x = F.silu(self.frames(x))
        # A frame that the recording does not fill is silent. It counts for the number of states.
        x = F.pad(x, (0, 0, 0, int(len(samples) % self.frame_samples > 0)))
        first, second = self.convolutions
        return _convolve(F.silu(_convolve(x, first)), second)


def _convolve(x: Tensor, convolution: nn.Module) -> Tensor:
    """Causal convolution of stride 2, with zeros before the first state: [n, in] -> [ceil(n / 2), out]."""
    assert isinstance(convolution, ConvolutionWeights)
    padded = F.pad(x.T[None], (convolution.weight.shape[2] - 1, 0))
    return F.conv1d(padded, convolution.weight, convolution.bias, stride=_STRIDE)[0].T
