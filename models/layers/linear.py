"""Linear layers. Every weight matrix that may be packed, quantised or adapted is a `Linear`."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from models.backends import interface as ops
from models.config import Activation
from models.layers.activations import ACTIVATIONS


def parameter(*shape: int) -> nn.Parameter:
    """A parameter without gradient, uninitialised until the weights are loaded."""
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
        """Replace the weight by a packed one, unless a layer that shares this module has already done so."""
        if self.packed is None:
            self.use_packed(packer(self.weight, self.bias))

    def use_packed(self, packed: ops.Product) -> None:
        """Replace the weight and the bias by a packed weight, and free them."""
        self.packed = packed
        del self.weight, self.bias


def concatenate(linears: list[Linear]) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of several linears with the same input, concatenated along the output features.

    Returns (weight, bias): [sum of out, in] and [sum of out], or None if no linear has a bias. A missing bias is zero.
    """
    weight = torch.cat([linear.weight for linear in linears])
    if all(linear.bias is None for linear in linears):
        return weight, None
    return weight, torch.cat(
        [weight.new_zeros(linear.weight.shape[0]) if linear.bias is None else linear.bias for linear in linears]
    )


class ConvolutionWeights(nn.Module):
    """Weight and bias of a convolution over tokens.

    weight: [out, in, size], model dtype.
    bias: [out], model dtype.
    """

    def __init__(self, out_features: int, in_features: int, size: int) -> None:
        super().__init__()
        self.weight = parameter(out_features, in_features, size)
        self.bias = parameter(out_features)
