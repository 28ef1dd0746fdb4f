"""Activation functions by the names that configurations use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from models.config import Activation


def _gelu_quick(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_quick": _gelu_quick,
    "silu": F.silu,
    "tanh": torch.tanh,
}


_WHOLE = 64
"""Numbers that a CPU's vector loops take at once, at most: torch computes what is left of a tensor by other code."""


def activate(x: Tensor, name: Activation) -> Tensor:
    """The activation, with the same bits for a row whatever rows are around it. x: [rows, width] -> the same."""
    left = -x.shape[-1] % _WHOLE
    if left == 0 or not x.is_cpu:
        return ACTIVATIONS[name](x)
    return ACTIVATIONS[name](F.pad(x, (0, left)))[..., :-left].contiguous()
