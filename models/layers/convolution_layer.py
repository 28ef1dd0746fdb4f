"""A layer with a convolution over neighbouring tokens beside it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from models.backends.cpu.recording import NotRecordable, Rows
from models.config import ConvolutionLayerConfig
from models.layers.activations import ACTIVATIONS
from models.layers.layer import Layer
from models.layers.linear import ConvolutionWeights
from models.layers.norms import make_norm
from models.step_inputs import PackedStep, Step


class ConvolutionLayer(Layer):
    """`norm(layer(x) + act(conv(x)))`; before the first and after the last token of a sequence there are zeros.

    forward: like `Layer.forward`; whole sequences only.
    Source: He et al. 2021, arXiv:2006.03654, by the published code of its second version.
    """

    def __init__(self, config: ConvolutionLayerConfig, hidden_size: int, index: int) -> None:
        super().__init__(config, hidden_size, index)
        self.groups, self.margin = config.groups, config.kernel_size // 2
        self.activation = ACTIVATIONS[config.activation]
        self.convolution = ConvolutionWeights(hidden_size, hidden_size // config.groups, config.kernel_size)
        self.convolution_norm = make_norm(config.norm, hidden_size)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        if isinstance(x, Rows):
            raise NotRecordable("rows beside each other are no program's business")
        assert isinstance(step, PackedStep) and self.convolution_norm is not None
        beside = step.wanted(self.index, self.activation(self._convolved(x, step.lengths)))
        y: Tensor = self.convolution_norm(super().forward(x, step) + beside)
        return y

    def _convolved(self, x: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """All sequences in one call: `margin` zeros stand before each of them and after the last."""
        gaps = torch.cat([torch.full((length,), number) for number, length in enumerate(lengths, 1)])
        rows = (torch.arange(len(x)) + self.margin * gaps).to(x.device)
        spaced = x.new_zeros(len(x) + self.margin * (len(lengths) + 1), x.shape[1])
        spaced[rows] = x
        kernel = self.convolution
        return F.conv1d(spaced.T[None], kernel.weight, kernel.bias, groups=self.groups)[0].T[rows - self.margin]
