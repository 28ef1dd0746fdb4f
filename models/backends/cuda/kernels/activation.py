"""Activation of a gated feed-forward, times the other product."""

from __future__ import annotations

from torch import Tensor

from models.config import Activation


def gated_activation(gate: Tensor, up: Tensor, activation: Activation, out: Tensor | None = None) -> Tensor:
    """`act(gate) * up`. The activation is computed in float32 and rounded to the dtype before the product.

    gate, up: [rows, width], model dtype; the last dimension contiguous, rows with any stride: they may be the halves of
        one merged product.
    out: [rows, width], contiguous: memory for the result; None for new memory.
    Returns [rows, width].
    """
    raise NotImplementedError
