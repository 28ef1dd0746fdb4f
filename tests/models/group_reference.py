"""Reference of products with group-wise quantised weights: float64 arithmetic on dequantised weights and rounded
activations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from models.backends.torch.quantization import quantize_int4, quantize_int8
from models.config import Activation
from models.layers.activations import ACTIVATIONS
from weights.quantized_matrix import QuantizedMatrix


def rounded_activations(x: Tensor, block: int) -> Tensor:
    """Activations after their rounding to int8 in blocks with a scale each, as float64. x: [rows, in]."""
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % block))
    rounded, scales = quantize_int8(padded.reshape(-1, block))
    return (rounded.double() * scales.double()[:, None]).view(padded.shape)[:, : x.shape[1]]


def reference(matrix: QuantizedMatrix, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """The product of a quantised matrix and a bias."""
    weight = matrix.dequantized(torch.float64)
    group = min(matrix.group, -(-matrix.shape[1] // 32) * 32)
    block = next((size for size in (128, 64) if matrix.bits <= 4 and group % size == 0), 32)

    def multiply(x: Tensor) -> Tensor:
        y = rounded_activations(x, block) @ weight.T
        return (y if bias is None else y + bias.double()).to(x.dtype)

    return multiply


class ReferenceInt4Weight:
    """Reference of the weights of `--quantize int4`. Implements `LinearWeight` except slices and rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._product = reference(quantize_int4(weight), bias)
        self.nbytes = weight.nbytes

    def multiply(self, x: Tensor, activation: Activation | None = None, multiplier: Tensor | None = None) -> Tensor:
        y = self._product(x)
        if activation is not None:
            y = ACTIVATIONS[activation](y)
        return y if multiplier is None else y * multiplier
