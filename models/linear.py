"""The one matrix product of the house: every weight matrix of a model is a `Linear`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models import ops


def parameter(*shape: int) -> nn.Parameter:
    """An inference parameter, to be filled when weights are loaded."""
    return nn.Parameter(torch.empty(shape), requires_grad=False)


class Linear(nn.Module):
    """`x W^T + b`. weight: [out, in], bias: [out], model dtype. forward: [..., in] -> [..., out]."""

    def __init__(self, in_features: int, out_features: int, bias: bool) -> None:
        super().__init__()
        self.weight = parameter(out_features, in_features)
        self.bias = parameter(out_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)


class ClippedLinear(Linear):
    """A linear layer whose results stay between `-clip` and `clip` (MosaicML 2023). forward: as above."""

    def __init__(self, in_features: int, out_features: int, bias: bool, clip: float) -> None:
        super().__init__(in_features, out_features, bias)
        self.clip = clip

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp(-self.clip, self.clip)
