"""RMS norm with a gate, for the results of mixers."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from models.layers.activations import activate
from models.layers.linear import parameter


class GatedNorm(nn.Module):
    """`norm(x) * silu(gate)`, or `norm(x * silu(gate))` where the gate is applied before the norm.

    The mean square of each group of features is computed in float32.

    weight: [width] or, for one weight that all groups share, [width / groups], model dtype; absent without a norm.
    groups: number of parts of a row that are normalised separately.
    eps: None for the gate alone.
    """

    def __init__(
        self, width: int, eps: float | None, groups: int, gate: Literal["before", "after"], shared: bool = False
    ) -> None:
        super().__init__()
        self.eps, self.groups, self.gate_first = eps, groups, gate == "before"
        self.weight = None if eps is None else parameter(width // groups if shared else width)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """x: [rows, width], float32. gate: [rows, width], model dtype. Returns [rows, width], model dtype."""
        factor = activate(gate.float(), "silu")
        if self.weight is None:
            return (x * factor).to(gate.dtype)
        if self.gate_first:
            x = x * factor
        parts = x.unflatten(-1, (self.groups, -1))
        parts = parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + self.eps)
        weight = self.weight.float()
        y = (parts * weight).flatten(-2) if weight.shape[0] == parts.shape[-1] else parts.flatten(-2) * weight
        return (y if self.gate_first else y * factor).to(gate.dtype)
