"""Reference implementation of products with group-wise quantised weights.

It computes in float64, with dequantised weights and rounded activations.
"""

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
    """Round activations to int8 with one scale per block of inputs. Returns the rounded values as float64.

    x: [rows, in]. block: number of inputs in a block.
    """
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % block))
    rounded, scales = quantize_int8(padded.reshape(-1, block))
    return (rounded.double() * scales.double()[:, None]).view(padded.shape)[:, : x.shape[1]]


def reference(matrix: QuantizedMatrix, bias: Tensor | None, whole_rows: bool = False) -> Callable[[Tensor], Tensor]:
    """Return a function that multiplies activations by a quantised matrix and adds a bias.

    whole_rows: whether all activations of a row share one scale.
    """
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
    """Reference of a packed weight with a quantised matrix. Implements `LinearWeight`, except slices and rows."""

    def __init__(self, matrix: QuantizedMatrix, bias: Tensor | None) -> None:
        self._product = reference(matrix, bias, whole_rows=is_int8(matrix))
        self.nbytes = matrix.nbytes

    def multiply(self, x: Tensor, activation: Activation | None = None, multiplier: Tensor | None = None) -> Tensor:
        y = self._product(x)
        if activation is not None:
            y = ACTIVATIONS[activation](y)
        return y if multiplier is None else y * multiplier


class ReferenceInt8GroupWeight(ReferenceGroupWeight):
    """Reference of a weight with the setting `--quantize int8`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(quantize_int8_groups(weight), bias)


class ReferenceInt4Weight(ReferenceGroupWeight):
    """Reference of a weight with the setting `--quantize int4-128`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(quantize_int4(weight, int4_group(weight.shape[1], 128)), bias)
