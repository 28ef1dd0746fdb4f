"""Weights into the layout that products are fastest in, once, after they are loaded."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.backends import interface as ops
from models.layers.attention import Attention
from models.layers.linear import Linear, Packer
from models.transformer import Transformer


class _Packer:
    """One that keeps what it packed."""

    def __init__(self, pack: Callable[[Tensor, Tensor | None], ops.PackedWeight], writes: torch.dtype) -> None:
        self._pack, self.writes = pack, writes
        self.packed: list[ops.PackedWeight] = []

    def __call__(self, weight: Tensor, bias: Tensor | None) -> ops.PackedWeight:
        self.packed.append(self._pack(weight, bias))
        return self.packed[-1]


def pack_weights(model: Transformer, quantization: ops.Quantization | None = None) -> int:
    """Pack every linear of a model in place; what reads one input is multiplied in one product.

    quantization: `int8` rounds all linears, the output head included, and with it the embeddings that are tied to it:
    they stay one. Other embeddings, norms and biases keep their dtype, and so do hidden states; attention then works in
    `ops.attention_dtype`, sparse and disentangled attention excepted. Returns the bytes that all weights take now.
    """
    packers: list[_Packer] = []
    model.attention_dtype = ops.attention_dtype(model.dtype, quantization)
    for writes in (model.dtype, model.attention_dtype, torch.float32):
        pack = ops.packer(model.dtype, model.device, quantization, writes)
        if pack is not None:
            packers.append(_Packer(pack, writes))
    if packers:
        packer, projecting, scoring = packers
        with torch.inference_mode():
            _pack(model, packer, projecting)
            model.pack_head(scoring)
    packed = [one for packer in packers for one in packer.packed]
    return sum(parameter.nbytes for parameter in model.parameters()) + sum(one.nbytes for one in packed)


def _pack(module: nn.Module, packer: Packer, projecting: Packer) -> None:
    """projecting: for the queries, keys and values of plain attention."""
    for name, child in module.named_children():
        if isinstance(child, Attention):
            child.pack(packer, projecting, one_input=name != "cross_attention")
        elif isinstance(child, Linear):
            child.pack(packer)
        else:
            _pack(child, packer, projecting)
