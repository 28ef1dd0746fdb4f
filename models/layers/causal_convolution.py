"""Short causal convolution over the tokens of a text, separate for each channel, with a window of earlier inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from models.layers.linear import ConvolutionWeights


class CausalConvolution(ConvolutionWeights):
    """Convolution of each channel with its own weights: the current token and the `kernel_size - 1` before it.

    A window holds the last `kernel_size - 1` inputs of a text, and zeros before its first token. Products are added in
    one order, so that both forms have the same bits.
    """

    def __init__(self, channels: int, kernel_size: int, bias: bool) -> None:
        super().__init__(channels, 1, kernel_size, bias)

    def chunked(self, x: Tensor, window: Tensor) -> Tensor:
        """Convolve consecutive tokens of one text.

        x: [tokens, channels], float32. window: [channels, kernel_size - 1], float32, updated in place.
        Returns [tokens, channels], float32.
        """
        inputs = torch.cat([window.T, x])
        window.copy_(inputs[x.shape[0] :].T)
        return self._sum([inputs[tap : tap + x.shape[0]] for tap in range(self.weight.shape[2])])

    def step(self, x: Tensor, windows: Tensor, slots: Tensor) -> Tensor:
        """Convolve one token of each row.

        x: [rows, channels], float32.
        windows: [slots, channels, kernel_size - 1], float32; those of the rows are updated in place.
        slots: [rows], int64.
        Returns [rows, channels], float32.
        """
        inputs = torch.cat([windows[slots], x[..., None]], dim=-1)
        windows[slots] = inputs[..., 1:]
        return self._sum(inputs.unbind(-1))

    def _sum(self, taps: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
        """The weighted sum of the inputs at each distance, the most distant one first."""
        weights = self.weight.float()[:, 0].unbind(1)
        total = taps[0] * weights[0]
        for tap, weight in zip(taps[1:], weights[1:], strict=True):
            total = total + tap * weight
        return total if self.bias is None else total + self.bias.float()
