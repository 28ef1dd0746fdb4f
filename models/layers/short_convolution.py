"""Gated short convolution, the mixer of LFM2."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from models.backends import interface as ops
from models.config import ShortConvolutionConfig
from models.layers.causal_convolution import CausalConvolution
from models.layers.linear import Linear
from models.layers.mixer import Mixer, Projections


class ShortConvolution(Mixer):
    """`output(c * convolution(b * x))`, where `b, c, x = input(hidden)`.

    Source: Liquid AI 2025, LFM2 technical report, arXiv:2511.23404.
    """

    def __init__(self, config: ShortConvolutionConfig, hidden_size: int) -> None:
        super().__init__()
        self.config, self.width = config, config.channels
        self.input = Linear(hidden_size, 3 * config.channels, config.bias)
        self.convolution = CausalConvolution(config.channels, config.kernel_size, config.bias)
        self.output = Linear(config.channels, hidden_size, config.bias)

    def project(self, hidden: Tensor) -> Projections:
        gate, multiplier, x = self.input(hidden).chunk(3, dim=-1)
        return (gate * x, multiplier)

    def chunked(self, projections: Projections, state: Sequence[Tensor]) -> Tensor:
        return self.convolution.chunked(projections[0].float(), state[0])

    def step(self, projections: Projections, states: Sequence[Tensor], slots: Tensor) -> Tensor:
        return self.convolution.step(projections[0].float(), states[0], slots)

    def finish(self, mixed: Tensor, projections: Projections) -> Tensor:
        output: Tensor = self.output(projections[1] * mixed.to(projections[1].dtype))
        return output

    def pack(self, packer: ops.LinearPacker, gate_packer: ops.LinearPacker) -> None:
        self.input.pack(packer)
        self.output.pack(packer)
