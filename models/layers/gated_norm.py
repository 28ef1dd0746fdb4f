"""RMS norm with a gate, which follows a mixer."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from models.backends.choice import backend
from models.backends.operands import GatedNormShape
from models.layers.linear import parameter


class GatedNorm(nn.Module):
    """RMS norm with a gate: `norm(x) * silu(gate)`, or `norm(x * silu(gate))` if `gate` is "before".

    weight: [width] or, for one weight that all groups share, [width / groups], model dtype; None without a norm.
    eps: epsilon of the norm; None for the gate without a norm.
    groups: number of parts of a row that are normalised separately.
    is_shared: whether all groups share one weight.
    gate_scale: factor of the gate before the SiLU.
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
        """Normalise x and apply the gate. x, gate: [rows, width], model dtype. Returns [rows, width], model dtype."""
        return backend(x).gated_norm(x, gate, self.weight, self.shape)
