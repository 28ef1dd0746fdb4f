"""Weights of short causal convolutions over the tokens of a text. Each channel has separate weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from models.backends.operands import ConvolutionNumbers
from models.layers.linear import ConvolutionWeights


class CausalConvolution(ConvolutionWeights):
    """Causal convolution of each channel over `kernel_size` tokens: the current token and the tokens before it.

    weight: [channels, 1, kernel_size], bias: [channels] or None, model dtype.
    """

    def __init__(self, channels: int, kernel_size: int, bias: bool) -> None:
        super().__init__(channels, 1, kernel_size, bias)
        self._numbers: ConvolutionNumbers | None = None

    @property
    def numbers(self) -> ConvolutionNumbers:
        """Weights and bias in the form that backend operations take. Converted at the first use."""
        if self._numbers is None:
            bias = None if self.bias is None else self.bias.float()
            self._numbers = ConvolutionNumbers(self.weight[:, 0].T.float().contiguous(), bias)
        return self._numbers


class JoinedConvolution(nn.Module):
    """Several convolutions of neighbouring groups of channels, computed as one convolution.

    channels: number of channels of each group, by name, in order. Each group is a submodule with this name.
    """

    def __init__(self, channels: Mapping[str, int], kernel_size: int) -> None:
        super().__init__()
        self._names = tuple(channels)
        for name, count in channels.items():
            self.add_module(name, CausalConvolution(count, kernel_size, bias=False))
        self._numbers: ConvolutionNumbers | None = None

    @property
    def numbers(self) -> ConvolutionNumbers:
        """The weights of all channels in the form that backend operations take. Converted at the first use."""
        if self._numbers is None:
            parts = [self.get_submodule(name) for name in self._names]
            weights = [part.numbers.weights for part in parts if isinstance(part, CausalConvolution)]
            self._numbers = ConvolutionNumbers(torch.cat(weights, 1), None)
        return self._numbers
