"""Pack the weights of a loaded model for the kernels that will read them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.backends import choice, linear_weights
from models.backends.linear_weights import LinearPacker, LinearWeight
from models.backends.tensor_memory import PRIVATE, TensorMemory
from models.layers.attention import Attention
from models.layers.feed_forward import FeedForward
from models.layers.linear import Linear, set_parameter
from models.layers.mixer import Mixer
from models.layers.moe import MixtureOfExperts, Router
from models.transformer import Transformer
from weights.quantized_matrix import QuantizedMatrix


class CountingPacker:
    """A `LinearPacker` that counts memory. packed_bytes: memory of all weights that it has packed."""

    def __init__(
        self, pack: Callable[[Tensor | QuantizedMatrix, Tensor | None], LinearWeight], out_dtype: torch.dtype
    ) -> None:
        self._pack, self.out_dtype, self.packed_bytes = pack, out_dtype, 0

    def __call__(self, weight: Tensor | QuantizedMatrix, bias: Tensor | None) -> LinearWeight:
        packed = self._pack(weight, bias)
        self.packed_bytes += packed.nbytes
        return packed


class WeightPacker:
    """Packs all linears of a model in place. Projections with the same input are merged into one product.

    For the Triton kernels it also merges gate and up of feed-forwards, and stacks experts. Weights that are not
    quantised stay dense there.

    dtype: dtype of the model.
    device: device that runs the model. Its parameters may be on the meta device, because `memory` has their contents.
    quantization: `int8` rounds linears, the output head, and the token table that is tied to it. The other values round
        linears to 4 bits in groups, and head and table to int8. Routers, small projections of mixers, other
        embeddings, norms, biases and hidden states keep their dtype. Attention then works in `attention_dtype`,
        except sparse and disentangled attention.
    memory: keeps the packed weights, and then the parameters that are not packed.
    Matrices that the checkpoint stores quantised, and that `has_kernel` accepts, are packed as they are.
    Raises QuantizationUnavailable.
    """

    def __init__(
        self,
        model: Transformer,
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
        if self._merges and quantization is not None and any(isinstance(m, MixtureOfExperts) for m in model.modules()):
            raise choice.QuantizationUnavailable(
                f"--quantize {quantization} takes no mixture of experts on a CUDA device: its kernel for experts needs "
                "float weights"
            )
        self._packers: list[CountingPacker] = []
        for out_dtype, rounding in (
            (dtype, quantization),
            (model.attention_dtype, quantization),
            # Rounding the output head to 4 bits would change results more than rounding the layers does.
            (torch.float32, None if quantization is None else "int8"),
            (dtype, None),
            (torch.float32, None),
        ):
            pack = linear_weights.packer(dtype, device, rounding, out_dtype, memory)
            if pack is not None:
                self._packers.append(CountingPacker(pack, out_dtype))

    def assign(self, name: str, value: Tensor | QuantizedMatrix) -> None:
        """Set a parameter, and pack its layer when this was the last one.

        Most layers are packed before the next one is read. Loading then needs the memory of the packed weights and of
        one layer as it is read, where a quantised matrix takes one byte per code.
        """
        set_parameter(self._model, name, value)
        layer = _layer_of(name)
        rest = self._missing.get(layer)
        if rest is not None:
            rest.discard(name)
            if not rest:
                self._pack_linears(self._model.get_submodule(layer))

    def finish(self) -> int:
        """Pack the rest of the model. Returns the memory of all weights in bytes."""
        self._pack_linears(self._model)
        if self._packers:
            with torch.inference_mode():
                self._model.pack_head(self._packers[2], self._packers[0])
        for name, parameter in list(self._model.named_parameters()):
            kept = self._memory.keep(parameter)
            if kept is not parameter:
                set_parameter(self._model, name, kept)
        packed_bytes = sum(packer.packed_bytes for packer in self._packers)
        return packed_bytes + sum(parameter.nbytes for parameter in self._model.parameters())

    def _pack_linears(self, module: nn.Module) -> None:
        """Pack the linears below a module that are not packed yet."""
        if not self._packers:
            return
        packer, projection_packer, _, gate_packer, router_packer = self._packers
        with torch.inference_mode():
            if self._merges:
                _merge(module, packer, projection_packer, gate_packer)
            else:
                _pack(module, packer, projection_packer, gate_packer, router_packer)


def _layer_of(name: str) -> str:
    """Path of the layer of a parameter: `decoder.layers.0` of `decoder.layers.0.attention.query.weight`."""
    return ".".join(name.split(".")[:3])


def _pack(
    module: nn.Module,
    packer: LinearPacker,
    projection_packer: LinearPacker,
    gate_packer: LinearPacker,
    router_packer: LinearPacker,
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


def _merge(
    module: nn.Module, packer: CountingPacker, projection_packer: CountingPacker, gate_packer: CountingPacker
) -> None:
    """Pack all linears below a module for the Triton kernels, except routers, whose logits are float32.

    The arguments are those of `_pack`.
    """
    for name, child in module.named_children():
        if isinstance(child, Attention):
            child.pack(packer, projection_packer, one_input=name != "cross_attention")
        elif isinstance(child, FeedForward):
            child.merge(packer)
            child.pack(packer)
        elif isinstance(child, Mixer):
            child.pack(packer, gate_packer)
        elif isinstance(child, MixtureOfExperts):
            packer.packed_bytes += child.stack()
            _merge(child, packer, projection_packer, gate_packer)
        elif isinstance(child, Linear) and not isinstance(child, Router):
            child.pack(packer)
        else:
            _merge(child, packer, projection_packer, gate_packer)
