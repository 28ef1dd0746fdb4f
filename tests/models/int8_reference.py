"""Reference implementation of int8 products in plain torch: slow, with exact integer sums."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from models.backends.torch.activations import ACTIVATIONS
from models.backends.torch.quantization import quantize_int8
from models.config import Activation


class ReferenceInt8Weight:
    """Reference of `models.backends.cpu.linear.Int8Weight`, with the same arguments and results."""

    def __init__(self, weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None = None) -> None:
        self.weight, self.scales = quantize_int8(weight)
        self.dtype, self.out_dtype = weight.dtype, out_dtype or weight.dtype
        self.bias = None if bias is None else bias.float()
        self.nbytes = sum(x.nbytes for x in (self.weight, self.scales, self.bias) if x is not None)

    def slice(self, first: int, end: int) -> ReferenceInt8Weight:
        found = copy(self)
        found.weight, found.scales = self.weight[first:end], self.scales[first:end]
        found.bias = None if self.bias is None else self.bias[first:end]
        return found

    def multiply(
        self,
        x: Tensor,
        activation: Activation | None = None,
        multiplier: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        rounded, row_scales = quantize_int8(x)
        # The sums of these integers are exact in float64, in any order.
        sums = (rounded.double() @ self.weight.double().T).float()
        y = sums * (self.scales * row_scales[:, None])
        y = (y if self.bias is None else y + self.bias).to(self.out_dtype)
        if activation is not None:
            y = ACTIVATIONS[activation](y)
        y = y if multiplier is None else y * multiplier
        return y if out is None else out[: len(y)].copy_(y)

    def rows(self, index: Tensor) -> Tensor:
        return (self.weight.index_select(0, index).float() * self.scales[index, None]).to(self.dtype)
