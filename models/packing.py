"""Weights into the layout that products are fastest in, once, after they are loaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models import ops
from models.attention import Attention
from models.linear import Linear, Packer
from models.transformer import Transformer


def pack_weights(model: Transformer, quantization: ops.Quantization | None = None) -> int:
    """Pack every linear of a model in place; what reads one input is multiplied in one product.

    quantization: `int8` rounds all linears, the output head included, and with it the embeddings that are tied to it:
    they stay one. Other embeddings, norms and biases keep their dtype. Returns the bytes that all weights take now.
    """
    packed: list[ops.PackedLinear] = []
    chosen = ops.packer(model.dtype, model.device, quantization)
    if chosen is not None:

        def packer(weight: Tensor, bias: Tensor | None) -> ops.PackedLinear:
            packed.append(chosen(weight, bias))
            return packed[-1]

        with torch.inference_mode():
            _pack(model, packer)
            model.pack_head(packer)
    return sum(parameter.nbytes for parameter in model.parameters()) + sum(one.nbytes for one in packed)


def _pack(module: nn.Module, packer: Packer) -> None:
    for name, child in module.named_children():
        if (type(child) is Attention and name != "cross_attention") or isinstance(child, Linear):
            child.pack(packer)
        else:
            _pack(child, packer)
