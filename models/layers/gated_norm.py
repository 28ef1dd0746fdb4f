"""RMS norm with a gate, for the results of mixers."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from models.backends.choice import backend
from models.backends.operands import GatedNormShape
from models.layers.linear import parameter


class GatedNorm(nn.Module):
    """`norm(x) * silu(gate)`, or `norm(x * silu(gate))` where the gate is applied before the norm.

    weight: [width] or, for one weight that all groups share, [width / groups], model dtype; None without a norm.
    eps: None for the gate alone.
    groups: number of parts of a row that are normalised separately.
    gate_scale: factor of the gate.
    """

    def __init__(
        self,
        width: int,
        eps: float | None,
        groups: int,
        gate: Literal["before", "after"],
        is_shared: bool = False,
        gate_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.shape = GatedNormShape(groups, eps or 1.0, is_shared, gate == "before", gate_scale)
        self.weight = None if eps is None else parameter(width // groups if is_shared else width)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """x, gate: [rows, width], model dtype. Returns [rows, width], model dtype."""
        return backend(x).gated_norm(x, gate, self.weight, self.shape)
