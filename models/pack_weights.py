"""Pack the weights of a loaded model for the kernels that will read them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.backends import interface as ops
from models.layers.attention import Attention
from models.layers.linear import Linear, set_parameter
from models.layers.mixer import Mixer
from models.layers.moe import MixtureOfExperts
from models.tensor_memory import PRIVATE, TensorMemory
from models.transformer import Transformer
from weights.quantized_matrix import QuantizedMatrix


class CountingPacker:
    """A `LinearPacker` that counts memory. packed_bytes: memory of all weights that it has packed."""

    def __init__(
        self, pack: Callable[[Tensor | QuantizedMatrix, Tensor | None], ops.LinearWeight], out_dtype: torch.dtype
    ) -> None:
        self._pack, self.out_dtype, self.packed_bytes = pack, out_dtype, 0

    def __call__(self, weight: Tensor | QuantizedMatrix, bias: Tensor | None) -> ops.LinearWeight:
        packed = self._pack(weight, bias)
        self.packed_bytes += packed.nbytes
        return packed


def pack_weights(
    model: Transformer,
    quantization: ops.Quantization | None = None,
    device: torch.device | None = None,
    memory: TensorMemory = PRIVATE,
) -> int:
    """Pack all linears of a model in place. Projections with the same input are merged into one product.

    quantization: `int8` rounds linears, the output head, and the token table that is tied to it. The other values round
        linears to 4 bits in groups, and head and table to int8. Routers, small projections of mixers, other
        embeddings, norms, biases and hidden states keep their dtype. Attention then works in `ops.attention_dtype`,
        except sparse and disentangled attention.
    device: device that runs the model; None for the device of its parameters. They differ if the parameters are on the
        meta device, because `memory` has their contents.
    memory: keeps the packed weights, and then the parameters that are not packed.
    Matrices that the checkpoint stores quantised, and that `ops.has_kernel` accepts, are packed as they are.
    Returns the memory of all weights in bytes. Raises QuantizationUnavailable.
    """
    model.attention_dtype = ops.attention_dtype(model.dtype, quantization)
    packers = []
    for out_dtype, rounding in (
        (model.dtype, quantization),
        (model.attention_dtype, quantization),
        # Products of the head need the precision of 8 bits more than those of the layers do.
        (torch.float32, None if quantization is None else "int8"),
        (model.dtype, None),
        (torch.float32, None),
    ):
        pack = ops.packer(model.dtype, device or model.device, rounding, out_dtype, memory)
        if pack is not None:
            packers.append(CountingPacker(pack, out_dtype))
    if packers:
        packer, projection_packer, head_packer, gate_packer, router_packer = packers
        with torch.inference_mode():
            _pack(model, packer, projection_packer, gate_packer, router_packer)
            model.pack_head(head_packer, packer)
    for name, parameter in list(model.named_parameters()):
        kept = memory.keep(parameter)
        if kept is not parameter:
            set_parameter(model, name, kept)
    packed_bytes = sum(packer.packed_bytes for packer in packers)
    return packed_bytes + sum(parameter.nbytes for parameter in model.parameters())


def _pack(
    module: nn.Module,
    packer: ops.LinearPacker,
    projection_packer: ops.LinearPacker,
    gate_packer: ops.LinearPacker,
    router_packer: ops.LinearPacker,
) -> None:
    """Pack all linears below a module.

    projection_packer: packs query, key and value projections of plain attention.
    gate_packer, router_packer: see `MixtureOfExperts.pack` and `Mixer.pack`. They do not quantise.
    """
    for name, child in module.named_children():
        if isinstance(child, Attention):
            child.pack(packer, projection_packer, one_input=name != "cross_attention")
        elif isinstance(child, MixtureOfExperts):
            child.pack(packer, gate_packer, router_packer)
        elif isinstance(child, Mixer):
            child.pack(packer, gate_packer)
        elif isinstance(child, Linear):
            child.pack(packer)
        else:
            _pack(child, packer, projection_packer, gate_packer, router_packer)
