"""Pack the weights of a model for the kernels that will read them, while the model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.backends import choice, linear_weights
from models.backends.linear_weights import LinearWeight
from models.backends.tensor_memory import PRIVATE, TensorMemory
from models.draft_head import DraftHead
from models.layers.attention import Attention
from models.layers.feed_forward import FeedForward
from models.layers.linear import Linear, set_parameter
from models.layers.mixer import Mixer
from models.layers.moe import MixtureOfExperts, Router
from models.transformer import Transformer
from weights.quantized_matrix import QuantizedMatrix


class CountingPacker:
    """A `LinearPacker` that counts memory. packed_bytes: memory of all weights packed so far, in bytes."""

    def __init__(
        self, pack: Callable[[Tensor | QuantizedMatrix, Tensor | None], LinearWeight], out_dtype: torch.dtype
    ) -> None:
        self._pack, self.out_dtype, self.packed_bytes = pack, out_dtype, 0

    def __call__(self, weight: Tensor | QuantizedMatrix, bias: Tensor | None) -> LinearWeight:
        packed = self._pack(weight, bias)
        self.packed_bytes += packed.nbytes
        return packed


class Packers(NamedTuple):
    """The packers of a model, one for each kind of weight.

    linears: all linears for which the other fields name no packer.
    first: the products before the activation of feed-forward networks: the gate, or the first product of a network
        without a gate. In a mixture of experts, gate and up of an expert are one matrix, which this packer packs.
    last: the last products of feed-forward networks.
    projections: query, key and value projections, except in latent attention and in attention over full sequences.
    head: the output head.
    gates, routers: small projections of mixers, gates of shared experts, and routers. These packers do not quantise.
    """

    linears: CountingPacker
    first: CountingPacker
    last: CountingPacker
    projections: CountingPacker
    head: CountingPacker
    gates: CountingPacker
    routers: CountingPacker


class WeightPacker:
    """Packs all linears of a model in place. Projections with the same input are merged into one product.

    For the Triton kernels it also merges gate and up of feed-forward networks, and stacks experts. On a CUDA device,
    weights that are not quantised stay dense.

    dtype: dtype of the model.
    device: device that runs the model. Its parameters may be on the meta device if `memory` has their contents.
    quantization: how weights are rounded; None for float weights. `int8`, `int8-fast` and `int6` round linears, the
        output head, and the token table that is tied to the head. The settings that start with `int4` round linears to
        4 bits in groups, and the head and its table as `int8` does. The following holds on a CPU:

        - `int4` rounds the head, its table, query, key and value projections, and the last products of feed-forward
          networks as `int6` does.
        - `int5` rounds everything as `int6` does, except the products before the activations of feed-forward networks,
          which get 4 bits.

        On a CUDA device, `int5` and `int6` round as `int8` does.

        Routers, small projections of mixers, other embeddings, norms, biases and hidden states keep their dtype. With
        any rounding, attention works in `attention_dtype`, except sparse and disentangled attention.
    memory: keeps the packed weights, and then the parameters that are not packed.
    Matrices that the checkpoint stores quantised are packed as they are if `has_kernel` is true for them.
    Raises QuantizationUnavailable if the device has no kernels for the quantised weights of this model.
    """

    def __init__(
        self,
        model: Transformer | DraftHead,
        dtype: torch.dtype,
        device: torch.device,
        quantization: choice.Quantization | None = None,
        memory: TensorMemory = PRIVATE,
    ) -> None:
        self._model, self._memory = model, memory
        self._missing: dict[str, set[str]] = {}
        for name, _ in model.named_parameters():
            if name.split(".")[1:2] == ["layers"]:
                self._missing.setdefault(_layer_of(name), set()).add(name)
        model.attention_dtype = linear_weights.attention_dtype(dtype, quantization)
        self._merges = choice.runs_cuda_kernels(device)
        packers: list[CountingPacker] = []
        sensitive = linear_weights.of_sensitive_weights(quantization, device)
        for out_dtype, rounding in (
            (dtype, linear_weights.of_linears(quantization, device)),
            (dtype, linear_weights.of_first_products(quantization, device)),
            (dtype, sensitive),
            (model.attention_dtype, sensitive),
            (torch.float32, linear_weights.of_head(quantization, device)),
            (dtype, None),
            (torch.float32, None),
        ):
            pack = linear_weights.packer(dtype, device, rounding, out_dtype, memory)
            if pack is not None:
                packers.append(CountingPacker(pack, out_dtype))
        # Without kernels, weights stay dense and there are no packers.
        self._packers = Packers(*packers) if packers else None

    def assign(self, name: str, value: Tensor | QuantizedMatrix) -> None:
        """Set a parameter. If it is the last missing parameter of its layer, pack the layer.

        Most layers are packed before the next layer is read. Loading then needs memory for the packed weights and for
        one layer that is not packed yet, in which a quantised matrix takes one byte per code.
        """
        set_parameter(self._model, name, value)
        layer = _layer_of(name)
        rest = self._missing.get(layer)
        if rest is not None:
            rest.discard(name)
            if not rest:
                self._pack_linears(self._model.get_submodule(layer))

    def finish(self) -> int:
        """Pack all weights that are not packed yet. Returns the memory of all weights in bytes."""
        self._pack_linears(self._model)
        if self._packers is not None:
            with torch.inference_mode():
                self._model.pack_head(self._packers.head, self._packers.linears)
        for name, parameter in list(self._model.named_parameters()):
            kept = self._memory.keep(parameter)
            if kept is not parameter:
                set_parameter(self._model, name, kept)
        packed_bytes = sum(packer.packed_bytes for packer in self._packers or ())
        return packed_bytes + sum(parameter.nbytes for parameter in self._model.parameters())

    def _pack_linears(self, module: nn.Module) -> None:
        """Pack the linears below a module that are not packed yet."""
        if self._packers is None:
            return
        with torch.inference_mode():
            _pack(module, self._packers, self._merges)


def _layer_of(name: str) -> str:
    """Path of the layer of a parameter: `decoder.layers.0` for `decoder.layers.0.attention.query.weight`."""
    return ".".join(name.split(".")[:3])


def _pack(module: nn.Module, packers: Packers, merges: bool) -> None:
    """Pack all linears below a module.

    merges: whether to merge gate and up of feed-forward networks, and to stack the experts of a layer, as the Triton
        kernels need. Routers, whose logits are float32, are then not packed.
    """
    for name, child in module.named_children():
        if isinstance(child, Attention):
            child.pack(packers.linears, packers.projections, one_input=name != "cross_attention")
        elif isinstance(child, Mixer):
            child.pack(packers.linears, packers.gates)
        elif isinstance(child, MixtureOfExperts) and not merges:
            child.pack(packers.linears, packers.first, packers.last, packers.gates, packers.routers)
        elif isinstance(child, Linear):
            if not (merges and isinstance(child, Router)):
                child.pack(packers.linears)
        elif isinstance(child, FeedForward):
            if merges:
                child.merge(packers.linears)
            child.pack(packers.first, packers.linears, packers.last)
        else:
            if isinstance(child, MixtureOfExperts):
                child.stack(packers.first, packers.last, packers.gates)
            _pack(child, packers, merges)
