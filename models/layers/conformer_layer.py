"""A Conformer layer: two feed-forwards, and between them self-attention and a convolution over neighbouring states."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.backends.torch.activations import ACTIVATIONS
from models.config import ConformerLayerConfig
from models.layers.layer import Layer
from models.layers.linear import ConvolutionWeights, Linear, parameter
from models.layers.moe import make_feed_forward
from models.layers.norms import SublayerNorms, make_norm
from models.steps.step_inputs.base import StepInputs

_EPSILON = 1e-5
"""Epsilon of the batch norm. Checkpoints have no setting for it."""


class MeasuredNorm(nn.Module):
    """Batch normalisation for inference, with means and variances from training.

    weight, bias, mean, variance: [channels], model dtype.
    forward: [tokens, channels] -> the same.
    Source: Ioffe and Szegedy 2015, arXiv:1502.03167.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = parameter(channels), parameter(channels)
        self.mean, self.variance = parameter(channels), parameter(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.variance, self.weight, self.bias, eps=_EPSILON)


class GatedConvolution(nn.Module):
    """A gated projection, a convolution with separate weights per channel, a norm, an activation, and a projection.

    forward: [tokens, hidden] -> the same. Each sequence is padded with zeros at both ends.
    """

    def __init__(self, config: ConformerLayerConfig, hidden_size: int) -> None:
        super().__init__()
        bias = config.convolution_bias
        self.input = Linear(hidden_size, 2 * hidden_size, bias)
        self.depthwise = ConvolutionWeights(hidden_size, 1, config.kernel_size, bias)
        self.norm = MeasuredNorm(hidden_size)
        self.output = Linear(hidden_size, hidden_size, bias)
        self.activation = ACTIVATIONS[config.convolution_activation]

    def forward(self, x: Tensor, lengths: tuple[int, ...]) -> Tensor:
        gated = F.glu(self.input(x), dim=1)
        convolved = torch.cat([self._convolve(part) for part in torch.split(gated, list(lengths))])
        output: Tensor = self.output(self.activation(self.norm(convolved)))
        return output

    def _convolve(self, x: Tensor) -> Tensor:
        """Convolve one sequence: [tokens, hidden] -> the same."""
        weights, channels = self.depthwise, x.shape[1]
        padding = (weights.weight.shape[2] - 1) // 2
        return F.conv1d(x.T[None], weights.weight, weights.bias, padding=padding, groups=channels)[0].T


class ConformerLayer(Layer):
    """Feed-forward, self-attention, convolution, feed-forward, then a norm. The step must contain whole sequences.

    not_captured: why a step with this layer cannot be captured as a CUDA graph.
    Source: Gulati et al. 2020, arXiv:2005.08100, section 2.
    """

    not_captured = "convolutions over the tokens of a recording"

    def __init__(self, config: ConformerLayerConfig, hidden_size: int, index: int) -> None:
        super().__init__(config, hidden_size, index)
        self.first_feed_forward = make_feed_forward(config.first_feed_forward, hidden_size)
        self.first_feed_forward_norms = SublayerNorms(config.feed_forward_norms, hidden_size)
        self.convolution = GatedConvolution(config, hidden_size)
        self.convolution_norms = SublayerNorms(config.attention_norms, hidden_size)
        self.output_norm = make_norm(config.output_norm, hidden_size)

    def forward(self, x: Tensor, step: StepInputs) -> Tensor:
        assert self.attention is not None and self.feed_forward is not None and self.output_norm is not None
        first, norms, last = self.first_feed_forward_norms, self.attention_norms, self.feed_forward_norms
        x = first.add_residual(x, self.first_feed_forward(first.norm_input(x)))
        x = norms.add_residual(x, step.self_attention(self.index, self.attention, norms.norm_input(x)))
        norms = self.convolution_norms
        x = norms.add_residual(x, self.convolution(norms.norm_input(x), step.lengths))
        x = last.add_residual(x, self.feed_forward(last.norm_input(x)))
        output: Tensor = self.output_norm(x)
        return output
