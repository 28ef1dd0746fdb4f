"""Embedding of raw audio: turns the samples of recordings into the hidden states that enter the first layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.config import NormConfig, WaveformEmbeddingConfig
from models.layers.linear import ConvolutionWeights, Linear, parameter
from models.layers.norms import make_norm
from models.steps.batch import WaveformBatch

_EPSILON = 1e-5
"""Epsilon of the norms of the convolutions over samples. Checkpoints have no setting for it."""


class SampleConvolution(ConvolutionWeights):
    """Convolution without padding, an optional norm, and GELU.

    forward: [1, in, samples] -> [1, out, (samples - size) // stride + 1], model dtype.
    channel_weight, channel_bias: [out], model dtype, or None: each channel is normalised over all samples, then scaled
        and shifted.
    norm: norm over the channels of each output; None for no norm.
    """

    def __init__(self, in_size: int, out_size: int, size: int, stride: int, bias: bool, normed: str | None) -> None:
        super().__init__(out_size, in_size, size, bias)
        self.stride = stride
        self.channel_weight = parameter(out_size) if normed == "channel" else None
        self.channel_bias = parameter(out_size) if normed == "channel" else None
        self.norm = make_norm(NormConfig("layer", _EPSILON), out_size) if normed == "all" else None

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv1d(x, self.weight, self.bias, stride=self.stride)
        if self.channel_weight is not None:
            x = F.group_norm(x, x.shape[1], self.channel_weight, self.channel_bias, _EPSILON)
        if self.norm is not None:
            x = self.norm(x[0].T.contiguous()).T[None]
        return F.gelu(x)


class ConvolutionalPositions(nn.Module):
    """Positions from a convolution over hidden states, with weight normalisation, followed by GELU.

    forward: [tokens, hidden] of one recording -> the same.
    scale: [1, 1, size]: for each of the `size` taps of the kernel, the norm of all weights of the tap.
    direction: [hidden, hidden / groups, size]: the weights before they are scaled to these norms.
    Source: Salimans and Kingma 2016, arXiv:1602.07868; Baevski et al. 2020, arXiv:2006.11477.
    """

    def __init__(self, hidden_size: int, size: int, groups: int) -> None:
        super().__init__()
        self.groups, self.size = groups, size
        self.scale = parameter(1, 1, size)
        self.direction = parameter(hidden_size, hidden_size // groups, size)
        self.bias = parameter(hidden_size)
        self._weight: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """The scaled weights of the convolution: [hidden, hidden / groups, size], model dtype.

        Computed once, in float32.
        """
        if self._weight is None:
            direction = self.direction.float()
            length = direction.square().sum((0, 1), keepdim=True).sqrt()
            self._weight = (direction * (self.scale.float() / length)).to(self.direction.dtype)
        return self._weight

    def forward(self, x: Tensor) -> Tensor:
        out = F.conv1d(x.T[None], self.weight, self.bias, padding=self.size // 2, groups=self.groups)
        # A kernel of even size gives one output too many.
        return F.gelu(out[0, :, : x.shape[0]]).T


class WaveformEmbedding(nn.Module):
    """Convolutions over samples, an optional norm, a projection, then positions, which are added, and an optional norm.

    Each recording is computed separately, so that its hidden states do not depend on the batch.
    Source: Baevski et al. 2020, arXiv:2006.11477, section 2.
    """

    def __init__(self, config: WaveformEmbeddingConfig, hidden_size: int) -> None:
        super().__init__()
        shapes = zip((1, *config.widths), config.widths, config.kernels, config.strides, strict=False)
        self.convolutions = nn.ModuleList(
            SampleConvolution(*shape, config.bias, "all" if config.normed == "all" else None if index else "channel")
            for index, shape in enumerate(shapes)
        )
        self.input_norm = make_norm(config.input_norm, config.widths[-1])
        self.projection = Linear(config.widths[-1], hidden_size, bias=True)
        self.positions = ConvolutionalPositions(hidden_size, config.position_kernel, config.position_groups)
        self.norm = make_norm(config.norm, hidden_size)

    def embed(self, batch: WaveformBatch) -> Tensor:
        """Compute the hidden states that enter the first layer: [tokens, hidden], model dtype."""
        samples = batch.samples.to(self.positions.bias.dtype)
        x = torch.cat([self._convolved(part) for part in torch.split(samples, list(batch.sample_lengths))])
        x = self.projection(x if self.input_norm is None else self.input_norm(x))
        x = x + torch.cat([self.positions(part) for part in torch.split(x, list(batch.lengths))])
        output: Tensor = x if self.norm is None else self.norm(x)
        return output

    def _convolved(self, samples: Tensor) -> Tensor:
        """Convolve one recording: [samples] -> [tokens, width]."""
        x = samples[None, None]
        for convolution in self.convolutions:
            x = convolution(x)
        return x[0].T
