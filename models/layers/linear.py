"""The one matrix product of the house: every weight matrix of a model is a `Linear`."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from models.backends import interface as ops
from models.config import Activation
from models.layers.activations import ACTIVATIONS


def parameter(*shape: int) -> nn.Parameter:
    """An inference parameter, to be filled when weights are loaded."""
    return nn.Parameter(torch.empty(shape), requires_grad=False)


class Packer(Protocol):
    """Puts a weight [out, in] and its bias [out] into the layout that products are fastest in. writes: their dtype."""

    @property
    def writes(self) -> torch.dtype: ...

    def __call__(self, weight: Tensor, bias: Tensor | None) -> ops.PackedWeight: ...


class Linear(nn.Module):
    """`x W^T + b`. weight: [out, in], bias: [out], model dtype.

    forward: [..., in] -> [..., out]; the activation of the product, or the product times another tensor, if either is
    asked for. `pack` lets the weight go: afterwards there is only the packed one.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool) -> None:
        super().__init__()
        self.weight = parameter(out_features, in_features)
        self.bias = parameter(out_features) if bias else None
        self.packed: ops.Product | None = None

    def forward(self, x: Tensor, activation: Activation | None = None, times: Tensor | None = None) -> Tensor:
        if self.packed is not None:
            return self.packed(x, activation, times)
        y = ops.linear(x, self.weight, self.bias)
        if activation is not None:
            y = ACTIVATIONS[activation](y)
        return y if times is None else y * times

    def pack(self, packer: Packer) -> None:
        """Once is enough for layers that share it."""
        if self.packed is None:
            self.become(packer(self.weight, self.bias))

    def become(self, packed: ops.Product) -> None:
        """Let the weight go for a packed one."""
        self.packed = packed
        del self.weight, self.bias


class ClippedLinear(Linear):
    """A linear layer whose results stay between `-clip` and `clip` (MosaicML 2023). forward: as above."""

    def __init__(self, in_features: int, out_features: int, bias: bool, clip: float) -> None:
        super().__init__(in_features, out_features, bias)
        self.clip = clip

    def forward(self, x: Tensor, activation: Activation | None = None, times: Tensor | None = None) -> Tensor:
        assert activation is None and times is None, "nothing follows what is clipped"
        return super().forward(x).clamp(-self.clip, self.clip)


def merged(parts: list[Linear]) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of linears that read the same input, one below the other; zeros for a bias that one lacks."""
    weight = torch.cat([part.weight for part in parts])
    if all(part.bias is None for part in parts):
        return weight, None
    return weight, torch.cat([weight.new_zeros(p.weight.shape[0]) if p.bias is None else p.bias for p in parts])


class ConvolutionWeights(nn.Module):
    """The weights of a convolution over tokens. weight: [out, in, size], bias: [out], model dtype."""

    def __init__(self, out_features: int, in_features: int, size: int) -> None:
        super().__init__()
        self.weight = parameter(out_features, in_features, size)
        self.bias = parameter(out_features)
