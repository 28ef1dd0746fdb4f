"""Activation functions, by the names that configurations use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from models.config import Activation


def _gelu_quick(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu_squared": _relu_squared,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_quick": _gelu_quick,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


_VECTOR_WIDTH = 64
"""A multiple of the number of elements that torch's CPU vector loops process at once. If the size of a tensor is not a
multiple of it, torch computes the last elements with scalar code, whose results can differ in the last bit."""


def activate(x: Tensor, name: Activation) -> Tensor:
    """Apply an activation so that the bits of a row do not depend on the other rows.

    x: [rows, width], any float dtype.
    Returns a new tensor like x.
    """
    return by_rows(ACTIVATIONS[name], x)


def by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply an elementwise function so that the bits of a row do not depend on the other rows.

    x: [rows, ...], any float dtype.
    Returns a new tensor like x.
    """
    padding = -x.shape[-1] % _VECTOR_WIDTH
    if padding == 0 or not x.is_cpu:
        return function(x)
    return function(F.pad(x, (0, padding)))[..., :-padding].contiguous()
