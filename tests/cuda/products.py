"""Products whose rows do not depend on one another, in place of those of a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


def make_exact(patch: pytest.MonkeyPatch) -> None:
    """Compute the products of linear layers in float64, and round them.

    The float32 product of a CPU rounds a row differently in a matrix with another number of rows.
    """
    linear = torch.nn.functional.linear

    def exact(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        wide = linear(x.double(), weight.double(), None if bias is None else bias.double())
        return wide.to(x.dtype)

    patch.setattr(torch.nn.functional, "linear", exact)
