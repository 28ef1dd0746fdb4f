"""Layouts of the weight of a linear: dense, packed for a kernel, or quantised; and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from models.backends import choice, fixed_order
from models.backends.choice import Quantization, backend
from models.backends.cpu import linear as cpu_linear
from models.backends.cpu.experts import PackedExperts as PackedExperts
from models.backends.cpu.group_weight import GroupWeight, fits
from models.backends.cpu.rounding import rounding_of
from models.backends.tensor_memory import PRIVATE, TensorMemory
from models.backends.torch import two_levels
from models.backends.torch.activations import activate
from models.backends.torch.quantization import quantize_int4, quantize_int6, quantize_int8, quantize_int8_groups
from models.config import Activation, MixtureOfExpertsConfig
from weights.quantized_matrix import QuantizedMatrix

_INT4: Mapping[str | None, tuple[int, bool]] = {
    "int4-32": (32, False),
    "int4-64": (64, False),
    "int4-128": (128, False),
    "int4-32-zero": (32, True),
    "int4-64-zero": (64, True),
    "int4-128-zero": (128, True),
}
"""For each quantisation with groups of a fixed size: the largest number of inputs that share a scale, and whether each
group of inputs has a zero point."""


class LinearWeight(Protocol):
    """Weight and bias of a linear in one layout: dense, packed for a kernel, or quantised."""

    @property
    def nbytes(self) -> int:
        """Bytes of weight, bias and scales."""

    def multiply(
        self,
        x: Tensor,
        activation: Activation | None = None,
        multiplier: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """`activation(x W^T + b) * multiplier`; activation and multiplier are optional.

        x: [rows, in], model dtype.
        multiplier: [rows, out], dtype of the result.
        out: [rows or more, out], contiguous: memory for the result; None for new memory.
        Returns [rows, out].
        """

    def rows(self, index: Tensor) -> Tensor:
        """Rows of the weight, for an embedding that is tied to it. index: [n], int64 -> [n, in].

        Raises IndexError for an index outside the weight.
        """

    def slice(self, first: int, end: int) -> LinearWeight | None:
        """A weight with the output features `first` to `end - 1`, in the same memory.

        Returns None if the layout cannot be divided at `first`.
        """


class ExpertWeights(Protocol):
    """The weights of all experts of one layer in a kernel's layout."""

    def mix(
        self, x: Tensor, shares: Tensor, experts: Tensor, shared: Tensor | None, shared_gate: Tensor | None
    ) -> Tensor:
        """For each token, the sum of its experts' outputs, weighted by their shares, plus the shared expert's output.

        The output of the shared expert is multiplied by `sigmoid(shared_gate)`.

        x: [tokens, hidden]. shares: [tokens, choices], float32. experts: [tokens, choices], int64.
        shared: [tokens, hidden] or None. shared_gate: [tokens, 1], or None for a factor of one.
        Returns [tokens, hidden].
        """


EXPERT_PANEL = cpu_linear.PANEL
"""`pack_experts` pads the output features of each expert to a multiple of this number."""


class LinearPacker(Protocol):
    """Function that packs a weight [out, in] and its bias, [out] or None, into a kernel's layout.

    The function also packs a quantised matrix, if `has_kernel` is true for it.
    out_dtype: dtype of the products.
    """

    @property
    def out_dtype(self) -> torch.dtype: ...

    def __call__(self, weight: Tensor | QuantizedMatrix, bias: Tensor | None) -> LinearWeight: ...


class DenseWeight:
    """A weight as torch stores it. weight: [out, in]. bias: [out] or None. Implements `LinearWeight`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def multiply(
        self,
        x: Tensor,
        activation: Activation | None = None,
        multiplier: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        y = backend(x).linear(x, self._weight, self._bias)
        if activation is not None:
            y = activate(y, activation)
        if multiplier is not None:
            y = y * multiplier
        return y if out is None else out[: len(y)].copy_(y)

    def rows(self, index: Tensor) -> Tensor:
        return backend(self._weight).sum_of_rows([(index, self._weight)])

    def slice(self, first: int, end: int) -> DenseWeight:
        return DenseWeight(self._weight[first:end], None if self._bias is None else self._bias[first:end])


def attention_dtype(dtype: torch.dtype, quantization: Quantization | None) -> torch.dtype:
    """Dtype of queries, keys and values, and of the attention output, in a model of the given dtype.

    Quantised models attend in bfloat16: rounding the inputs to int8 already loses more than bfloat16 does.
    """
    return torch.bfloat16 if quantization is not None and dtype == torch.float32 else dtype


def packer(
    dtype: torch.dtype,
    device: torch.device,
    quantization: Quantization | None = None,
    out_dtype: torch.dtype | None = None,
    memory: TensorMemory = PRIVATE,
) -> Callable[[Tensor | QuantizedMatrix, Tensor | None], LinearWeight] | None:
    """The function that packs a weight and its bias for the backend's kernels; None where weights stay dense.

    out_dtype: dtype of the products; None for `dtype`. Weights that are not quantised support `dtype` and float32 only.
    memory: keeps the packed tensors.
    Raises QuantizationUnavailable where the backend has no kernel for quantised weights.
    """
    choice.check_quantization(dtype, device, quantization)
    if choice.runs_cuda_kernels(device):
        return _cuda_packer(dtype, quantization, out_dtype or dtype)
    if not choice.has_kernels(dtype, device):
        return None

    def pack(weight: Tensor | QuantizedMatrix, bias: Tensor | None) -> LinearWeight:
        weight = _rounded(weight, quantization)
        if isinstance(weight, QuantizedMatrix) and not cpu_linear.is_int8(weight):
            return GroupWeight(weight, bias, dtype, out_dtype, memory)
        if isinstance(weight, QuantizedMatrix) or quantization == "int8-fast":
            return cpu_linear.Int8Weight(weight, bias, out_dtype, memory, dtype)
        return cpu_linear.FloatWeight(weight, bias, out_dtype=out_dtype, memory=memory)

    return pack


def of_linears(quantization: Quantization | None, device: torch.device) -> Quantization | None:
    """Rounding of the linear layers except first products, sensitive weights and output head; None for no rounding.

    quantization: the setting of the model.
    """
    return "int6" if quantization == "int5" and not choice.runs_cuda_kernels(device) else quantization


def of_first_products(quantization: Quantization | None, device: torch.device) -> Quantization | None:
    """Rounding of the first linear layers of feed-forward networks, before the activation. Their errors matter least.

    quantization: the setting of the model. Returns None for no rounding.
    See docs/decisions/0176-a-mixture-at-the-size-of-q4-k-m.md.
    """
    return "int4" if quantization == "int5" and not choice.runs_cuda_kernels(device) else quantization


def of_sensitive_weights(quantization: Quantization | None, device: torch.device) -> Quantization | None:
    """Rounding of the weights whose errors matter most; None for no rounding.

    These are the projections to queries, keys and values, and the last products of feed-forward networks.
    quantization: the setting of the model. See docs/decisions/0142-mixture-of-4-and-6-bits.md.
    """
    return "int6" if quantization in ("int4", "int5") and not choice.runs_cuda_kernels(device) else quantization


def of_head(quantization: Quantization | None, device: torch.device) -> Quantization | None:
    """Rounding of the output head, and of the token table that is tied to it; None for no rounding.

    Rounding the head to 4 bits would change results more than rounding the layers does.
    quantization: the setting of the model.
    """
    if quantization in ("int4", "int5", "int6") and not choice.runs_cuda_kernels(device):
        return "int6"
    return quantization if quantization in (None, "int8-fast") else "int8"


def _cuda_packer(
    dtype: torch.dtype, quantization: Quantization | None, out_dtype: torch.dtype
) -> Callable[[Tensor | QuantizedMatrix, Tensor | None], LinearWeight]:
    """The function that packs a weight and its bias for a CUDA device.

    Weights that are not quantised stay dense, for cuBLAS or, with `fixed_order.enabled`, for a Triton kernel.

    Weights that are rounded to 8 bits have one scale per output feature. In products of many rows, `int8-fast` rounds
    the rows to 8 bits, `int8` to 15 bits. There is no 6-bit kernel, so `int6` and `int5` are computed as `int8`.
    """
    from models.backends.cuda.dense_weight import CudaDenseWeight
    from models.backends.cuda.quantized_weights import BytesInTiles, Int4InTiles

    in_fixed_order = fixed_order.enabled

    def pack(weight: Tensor | QuantizedMatrix, bias: Tensor | None) -> LinearWeight:
        if quantization not in ("int8", "int6", "int5"):
            weight = _rounded(weight, quantization)
        packed: LinearWeight
        if isinstance(weight, Tensor) and quantization is None:
            packed = CudaDenseWeight(weight, bias, out_dtype, in_fixed_order)
        else:
            if isinstance(weight, Tensor):
                codes, scales = quantize_int8(weight)
                weight = QuantizedMatrix(codes, 8, codes.shape[1], scales[:, None])
            if weight.bits == 8:
                fast = quantization == "int8-fast"
                packed = BytesInTiles(weight, bias, dtype, out_dtype, in_fixed_order, fast)
            else:
                packed = Int4InTiles(weight, bias, dtype, out_dtype, in_fixed_order)
        return packed

    return pack


def _rounded(weight: Tensor | QuantizedMatrix, quantization: Quantization | None) -> Tensor | QuantizedMatrix:
    """Round a weight in groups if `quantization` has groups. Otherwise the weight is returned as it is.

    A weight that is already quantised is not rounded again.
    """
    if isinstance(weight, QuantizedMatrix):
        return weight
    if quantization == "int8":
        return quantize_int8_groups(weight, rounding_of(weight))
    if quantization == "int6":
        return quantize_int6(weight, rounding_of(weight))
    if quantization == "int4" and two_levels.fits(weight.shape[1]):
        return two_levels.quantize_two_levels(weight, rounding_of(weight))
    if quantization not in (*_INT4, "int4"):
        return weight
    most, with_zero_points = _INT4["int4-32-zero" if quantization == "int4" else quantization]
    return quantize_int4(weight, int4_group(weight.shape[1], most), with_zero_points)


def int4_group(width: int, most: int) -> int:
    """Number of inputs that share a scale, for rows of `width` inputs.

    The first of `most`, `most / 2` and `most / 4` that divides the width and is at least 32; if there is none, 32.
    """
    return next((size for size in (most, most // 2, most // 4) if size >= 32 and width % size == 0), 32)


def has_kernel(matrix: QuantizedMatrix, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a kernel multiplies by a quantised matrix without dequantising it.

    matrix: may be on the meta device. dtype: dtype of hidden states.
    """
    if choice.runs_cuda_kernels(device):
        from models.backends.cuda.quantized_weights import fits as fits_in_tiles

        return fits_in_tiles(matrix)
    return choice.has_kernels(dtype, device) and (cpu_linear.is_int8(matrix) or fits(matrix))


def pack_experts(
    packer: LinearPacker,
    last_packer: LinearPacker,
    inner: tuple[Tensor | QuantizedMatrix, Tensor | None],
    outer: tuple[Tensor | QuantizedMatrix, Tensor | None],
    config: MixtureOfExpertsConfig,
) -> PackedExperts:
    """Pack the experts of a layer for the compiled CPU kernels.

    packer, last_packer: pack the first and the last products.
    inner, outer: weight and bias of the first and of the last products, in the layout of `PackedExperts`.
    """
    weights = packer(*inner), last_packer(*outer)
    assert all(isinstance(weight, cpu_linear.CpuWeight) for weight in weights), (
        "only the CPU kernels have packed weights"
    )
    return PackedExperts(*weights, config)  # type: ignore[arg-type]


def stack_experts(
    packer: LinearPacker,
    last_packer: LinearPacker,
    inner: tuple[Tensor | QuantizedMatrix, Tensor | None],
    outer: tuple[Tensor | QuantizedMatrix, Tensor | None],
    config: MixtureOfExpertsConfig,
) -> ExpertWeights:
    """Pack the experts of a layer for the Triton kernels.

    packer, last_packer: pack the first and the last products.
    inner, outer: weight and bias of the first and of the last products: [features of all experts, in] and [features of
        all experts] or None. The features of one expert are consecutive: first the features of the gate, if there is
        one, then the other features.
    """
    from models.backends.cuda.experts import StackedExperts

    weights = packer(*inner), last_packer(*outer)
    return StackedExperts(*weights, config, fixed_order.enabled)  # type: ignore[arg-type]
