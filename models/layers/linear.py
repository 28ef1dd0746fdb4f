"""Linear layers. Every weight matrix that may be packed, quantised or adapted is a `Linear`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.backends.linear_weights import DenseWeight, LinearPacker, LinearWeight
from models.config import Activation
from weights.quantized_matrix import QuantizedMatrix, concatenate_rows


def parameter(*shape: int) -> nn.Parameter:
    """A parameter without gradient, uninitialised until the weights are loaded."""
    return nn.Parameter(torch.empty(shape), requires_grad=False)


def set_parameter(module: nn.Module, name: str, value: Tensor | QuantizedMatrix) -> None:
    """Set the parameter with this dotted name, without gradient.

    A quantised matrix becomes a normal attribute instead.
    """
    path, _, attribute = name.rpartition(".")
    owner = module.get_submodule(path)
    if isinstance(value, QuantizedMatrix):
        delattr(owner, attribute)
        setattr(owner, attribute, value)
    else:
        setattr(owner, attribute, nn.Parameter(value, requires_grad=False))


class Linear(nn.Module):
    """Linear layer: `x W^T + b`. Its weight may be dense, quantised or packed.

    weight: [out, in], model dtype, or a quantised matrix as the checkpoint stores it, until it is packed.
    bias: [out] or None, model dtype. Both are deleted once the weight is packed.
    packed: the weight in a kernel's layout, or with adapters; None while it is dense.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool) -> None:
        super().__init__()
        self.weight: nn.Parameter | QuantizedMatrix = parameter(out_features, in_features)
        self.bias = parameter(out_features) if bias else None
        self.packed: LinearWeight | None = None

    def forward(self, x: Tensor, activation: Activation | None = None, multiplier: Tensor | None = None) -> Tensor:
        """Compute `activation(x W^T + b) * multiplier`: [rows, in] -> [rows, out].

        multiplier: [rows, out], dtype of the result.
        out: [rows or more, out], contiguous: memory for the result; None for new memory.
        """
        return self.linear_weight.multiply(x, activation, multiplier)

    @property
    def linear_weight(self) -> LinearWeight:
        """The weight in its current layout: packed, or dense."""
        if self.packed is not None:
            return self.packed
        assert not isinstance(self.weight, QuantizedMatrix), "a quantised matrix must be packed first"
        return DenseWeight(self.weight, self.bias)

    def pack(self, packer: LinearPacker) -> None:
        """Replace the weight by a packed weight. Does nothing if a layer that shares this linear already packed it."""
        if self.packed is None:
            self.use_packed(packer(self.weight, self.bias))

    def use_packed(self, packed: LinearWeight) -> None:
        """Replace the weight and the bias by a packed weight, and free them."""
        self.packed = packed
        del self.weight, self.bias


def concatenate(linears: list[Linear]) -> tuple[Tensor | QuantizedMatrix, Tensor | None] | None:
    """Weight and bias of several linears with the same input, concatenated along the output features.

    Returns (weight, bias): [sum of out, in], and [sum of out] or None if no linear has a bias. A missing bias is zero.
    Returns None if only some of the weights are quantised, or in different layouts.
    """
    weights = [linear.weight for linear in linears]
    quantized = [weight for weight in weights if isinstance(weight, QuantizedMatrix)]
    weight: Tensor | QuantizedMatrix
    if not quantized:
        weight = concatenate_rows([weight for weight in weights if isinstance(weight, Tensor)])
    elif len(quantized) == len(weights) and all(quantized[0].has_layout_of(matrix) for matrix in quantized):
        weight = QuantizedMatrix.concatenated(quantized)
    else:
        return None
    biases = [linear.bias for linear in linears if linear.bias is not None]
    if not biases:
        return weight, None
    return weight, concatenate_rows(
        [biases[0].new_zeros(linear.weight.shape[0]) if linear.bias is None else linear.bias for linear in linears]
    )


class ConvolutionWeights(nn.Module):
    """Weight and bias of a convolution over tokens.

    weight: [out, in, size], model dtype.
    bias: [out] or None, model dtype.
    """

    def __init__(self, out_features: int, in_features: int, size: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = parameter(out_features, in_features, size)
        self.bias = parameter(out_features) if bias else None
