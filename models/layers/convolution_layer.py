"""A transformer layer with a convolution over neighbouring tokens in parallel to it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from models.backends.torch.activations import ACTIVATIONS
from models.config import ConvolutionLayerConfig
from models.layers.layer import Layer
from models.layers.linear import ConvolutionWeights
from models.layers.norms import make_norm
from models.steps.step_inputs.base import StepInputs


class ConvolutionLayer(Layer):
    """Layer that computes `norm(layer(x) + act(conv(x)))`. Each sequence is padded with zeros at both ends.

    not_captured: why a step with this layer cannot be captured as a CUDA graph.
    forward: [tokens, hidden] -> [tokens, hidden], model dtype. The step must contain whole sequences.
    Source: He et al. 2021, arXiv:2006.03654, and the published code of DeBERTa-v2.
    """

    not_captured = "convolutions over the tokens of a text"

    def __init__(self, config: ConvolutionLayerConfig, hidden_size: int, index: int) -> None:
        super().__init__(config, hidden_size, index)
        self.groups, self.padding = config.groups, config.kernel_size // 2
        self.activation = ACTIVATIONS[config.activation]
        self.convolution = ConvolutionWeights(hidden_size, hidden_size // config.groups, config.kernel_size)
        self.convolution_norm = make_norm(config.norm, hidden_size)

    def forward(self, x: Tensor, step: StepInputs) -> Tensor:
        assert self.convolution_norm is not None
        convolved = step.select_rows(self.index, self.activation(self._convolve(x, step.lengths)))
        y: Tensor = self.convolution_norm(super().forward(x, step) + convolved)
        return y

    def _convolve(self, x: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """Convolve all sequences in one call, with `padding` zero rows before each sequence and after the last.

        x: [tokens, hidden], model dtype.
        lengths: number of tokens of each sequence.
        Returns [tokens, hidden].
        """
        gaps = torch.cat([torch.full((length,), number) for number, length in enumerate(lengths, 1)])
        rows = (torch.arange(len(x)) + self.padding * gaps).to(x.device)
        padded = x.new_zeros(len(x) + self.padding * (len(lengths) + 1), x.shape[1])
        padded[rows] = x
        weights = self.convolution
        return F.conv1d(padded.T[None], weights.weight, weights.bias, groups=self.groups)[0].T[rows - self.padding]
