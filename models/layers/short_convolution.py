"""Gated short convolution, the mixer of LFM2."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from models.backends.choice import backend
from models.backends.linear_weights import LinearPacker
from models.config import ShortConvolutionConfig
from models.layers.causal_convolution import CausalConvolution
from models.layers.linear import Linear
from models.layers.mixer import Mixer, Projections


class ShortConvolution(Mixer):
    """Mixer that computes `output(multiplier * convolution(gate * x))`, where `gate, multiplier, x = input(hidden)`.

    Source: Liquid AI 2025, LFM2 technical report, arXiv:2511.23404.
    """

    def __init__(self, config: ShortConvolutionConfig, hidden_size: int) -> None:
        super().__init__()
        self.config, self.width = config, config.channels
        self.input = Linear(hidden_size, 3 * config.channels, config.bias)
        self.convolution = CausalConvolution(config.channels, config.kernel_size, config.bias)
        self.output = Linear(config.channels, hidden_size, config.bias)

    def project(self, hidden: Tensor) -> Projections:
        product, width = self.input(hidden), self.width
        return product[:, :width], product[:, width : 2 * width], product[:, 2 * width :]

    def chunked(self, projections: Projections, state: Sequence[Tensor]) -> Tensor:
        gate, multiplier, x = projections
        return backend(x).gated_convolution_chunk(x, gate, multiplier, self.convolution.numbers, state[0])

    def step(self, projections: Projections, states: Sequence[Tensor], slots: Tensor) -> Tensor:
        gate, multiplier, x = projections
        return backend(x).gated_convolution_step(x, gate, multiplier, self.convolution.numbers, states[0], slots)

    def finish(self, mixed: Tensor, projections: Projections) -> Tensor:
        output: Tensor = self.output(mixed)
        return output

    def pack(self, packer: LinearPacker, gate_packer: LinearPacker) -> None:
        self.input.pack(packer)
        self.output.pack(packer)
