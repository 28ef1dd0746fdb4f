"""Reference of products with group-wise quantised weights: float64 arithmetic on dequantised weights and rounded
activations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from models.backends.cpu.linear import is_int8
from models.backends.linear_weights import int4_group
from models.backends.torch.activations import ACTIVATIONS
from models.backends.torch.quantization import quantize_int4, quantize_int8, quantize_int8_groups
from models.config import Activation
from weights.quantized_matrix import QuantizedMatrix


def rounded_activations(x: Tensor, block: int) -> Tensor:
    """Activations after their rounding to int8 in blocks with a scale each, as float64. x: [rows, in]."""
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % block))
    rounded, scales = quantize_int8(padded.reshape(-1, block))
    return (rounded.double() * scales.double()[:, None]).view(padded.shape)[:, : x.shape[1]]


def reference(matrix: QuantizedMatrix, bias: Tensor | None, whole_rows: bool = False) -> Callable[[Tensor], Tensor]:
    """The product of a quantised matrix and a bias. whole_rows: the activations of a row share one scale."""
    weight = matrix.dequantized(torch.float64)
    group = min(matrix.group, -(-matrix.shape[1] // 32) * 32)
    is_wide = matrix.bits <= 4 and matrix.table is None
    block = next((size for size in (128, 64) if is_wide and group % size == 0), 32)
    block = matrix.shape[1] if whole_rows else block

    def multiply(x: Tensor) -> Tensor:
        y = rounded_activations(x, block) @ weight.T
        return (y if bias is None else y + bias.double()).to(x.dtype)

    return multiply


class ReferenceGroupWeight:
    """Reference of the packed weight of a quantised matrix. Implements `LinearWeight` except slices and rows."""

    def __init__(self, matrix: QuantizedMatrix, bias: Tensor | None) -> None:
        self._product = reference(matrix, bias, whole_rows=is_int8(matrix))
        self.nbytes = matrix.nbytes

    def multiply(self, x: Tensor, activation: Activation | None = None, multiplier: Tensor | None = None) -> Tensor:
        y = self._product(x)
        if activation is not None:
            y = ACTIVATIONS[activation](y)
        return y if multiplier is None else y * multiplier


class ReferenceInt8GroupWeight(ReferenceGroupWeight):
    """Reference of the weights of `--quantize int8`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(quantize_int8_groups(weight), bias)


class ReferenceInt4Weight(ReferenceGroupWeight):
    """Reference of the weights of `--quantize int4-128`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(quantize_int4(weight, int4_group(weight.shape[1], 128)), bias)
