"""The hot operations: their shapes, dtypes and meaning, and the choice of the backend that computes them.

`backends/torch` is the reference: any device, any float dtype. `backends/cpu` has compiled kernels for float32 and
bfloat16 on a CPU, and records operations on symbolic tensors. `backends/cuda` has Triton kernels for CUDA devices. The
arguments choose the backend. Tests compare each backend with the reference. docs/adding-an-operation.md shows how to
add an operation. Attention is in `attention_interface`, the operations of mixers in `mixer_interface`, the layouts of
weights in `linear_weights`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.backends.cpu import library
from models.backends.cpu import linear as cpu_linear
from models.backends.cpu import operations as cpu_operations
from models.backends.cpu import sampling as cpu_sampling
from models.backends.cpu.library import StaleKernels as StaleKernels
from models.backends.cpu.missing import why_kernels_are_missing
from models.backends.cpu.trace import SymbolicTensor
from models.backends.cuda import choice as cuda_choice
from models.backends.int8_slots import CacheSide
from models.backends.logits import LogitsTopK
from models.backends.operands import CacheSlots, RotaryAngles, XieluShape
from models.backends.torch import logits_top_k as torch_logits
from models.backends.torch import operations as torch_operations
from models.backends.torch import sampling as torch_sampling
from models.backends.torch.sampling import Drawn, Filters
from models.config import Activation, RouterConfig

Quantization = Literal[
    "int8", "int4", "int4-32", "int4-64", "int4-128", "int4-32-zero", "int4-64-zero", "int4-128-zero"
]

kernels_are_built = cpu_operations.available()
"""Whether this installation has compiled kernels; without them a CPU computes with torch."""

programs_are_enabled = kernels_are_built
"""Whether layers may run as programs. `using` can switch this off."""

_kernels = kernels_are_built
_cuda_kernels: Literal["on_cuda", "always", "never"] = "on_cuda"
"""Where the Triton kernels compute: on CUDA devices, on any device (in Triton's interpreter), or nowhere."""


class QuantizationUnavailable(ValueError):
    """A setting asks for int8 or int4, but no kernel computes with them on this device."""


# ------------------------------------------------------------------------------------------------ choice of the backend


def backend(x: Tensor) -> ModuleType:
    """The module with the operations for tensors like `x`."""
    if (_kernels and cpu_operations.takes(x)) or isinstance(x, SymbolicTensor):
        return cpu_operations
    if _cuda_kernels == "always" or (_cuda_kernels == "on_cuda" and cuda_choice.takes(x)):
        return cuda_choice.operations()
    return torch_operations


def runs_kernels(x: Tensor) -> bool:
    """Whether the compiled kernels compute with tensors like `x`."""
    return _kernels and cpu_operations.takes(x)


def check_kernels() -> None:
    """Raises StaleKernels where the compiled kernels are of another version of Triptych."""
    library.load()


@contextmanager
def using(name: Literal["torch", "cpu", "cuda"], programs: bool = True) -> Iterator[None]:
    """Use one backend in the whole process, for tests and comparisons. `cuda` needs Triton's interpreter on a CPU.

    programs: False runs all layers eagerly.
    """
    global _kernels, _cuda_kernels, programs_are_enabled
    before = _kernels, _cuda_kernels, programs_are_enabled
    assert name != "cpu" or kernels_are_built, "the compiled kernels were not built"
    _kernels, programs_are_enabled = name == "cpu", name == "cpu" and programs
    _cuda_kernels = "always" if name == "cuda" else "never"
    try:
        yield
    finally:
        _kernels, _cuda_kernels, programs_are_enabled = before


def runs_cuda_kernels(device: torch.device) -> bool:
    """Whether the Triton kernels compute on a device."""
    return _cuda_kernels == "always" or (_cuda_kernels == "on_cuda" and cuda_choice.runs_on(device))


def has_kernels(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the compiled kernels compute with hidden states of a dtype on a device."""
    return _kernels and device.type == "cpu" and dtype in library.DTYPE_CODES


def check_quantization(dtype: torch.dtype, device: torch.device, quantization: Quantization | None) -> None:
    """Check that the backend has a kernel for quantised weights. Raises QuantizationUnavailable.

    Without one, a quantised product would be slower than a float product.
    """
    if quantization is not None and not runs_cuda_kernels(device):
        _check_kernels_of(f"--quantize {quantization}", dtype, device, _OR_A_DEVICE)


def check_int8_cache(dtype: torch.dtype, device: torch.device) -> None:
    """Raises QuantizationUnavailable where the backend has no kernel that reads int8 keys and values.

    Without one, attention would first convert all of them.
    dtype: dtype of queries, keys and values.
    """
    _check_kernels_of("--kv-cache-dtype int8", dtype, device)


_OR_A_DEVICE = ", or a CUDA device of compute capability 8.0 or later with triton"


def _check_kernels_of(setting: str, dtype: torch.dtype, device: torch.device, otherwise: str = "") -> None:
    """Raises QuantizationUnavailable where the compiled kernels do not run.

    setting: the setting that needs them. otherwise: what it could have instead of them, for the message.
    """
    if has_kernels(dtype, device):
        return
    if device.type != "cpu":
        reason = f"the model runs on {device.type}"
    elif not _kernels:
        reason = why_kernels_are_missing()
    else:
        reason = f"the model computes in {str(dtype).removeprefix('torch.')}"
    needs = f"a CPU, float32 or bfloat16, and the compiled kernels{otherwise}"
    raise QuantizationUnavailable(f"{setting} needs {needs}: {reason}")


def kernels_version() -> str:
    """Version of the compiled kernels, which determines the layouts of packed weights; empty without kernels."""
    return library.interface_hash() if kernels_are_built else ""


def is_amx_refused() -> bool:
    """Whether the processor has a matrix unit (AMX) that the system does not let this process use."""
    return library.is_amx_refused()


# ----------------------------------------------------------------------------------------------------------- operations


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply rows by a dense weight: `x W^T + b`.

    x: [..., in]. weight: [out, in]. bias: [out] or None. One dtype.
    Returns [..., out].
    """
    if backend(x) is cpu_operations:
        return cpu_linear.linear(x, weight, bias)
    return torch_operations.linear(x, weight, bias)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Layer norm over the last dimension, computed in float32.

    x: [..., hidden]. weight: [hidden]. bias: [hidden] or None. One dtype.
    Returns a tensor like x. Source: Ba et al. 2016, arXiv:1607.06450.
    """
    return backend(x).layer_norm(x, weight, bias, eps)  # type: ignore[no-any-return]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last dimension: normalised in float32, scaled in the dtype of x.

    x: [..., hidden]. weight: [hidden]. One dtype.
    Returns a tensor like x. Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    return backend(x).rms_norm(x, weight, eps)  # type: ignore[no-any-return]


def rms_norm_from_one(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm with the weight `1 + weight`, computed entirely in float32.

    Arguments as for `rms_norm`. Source: Gemma Team 2024, arXiv:2403.08295, by its published code.
    """
    return backend(x).rms_norm_from_one(x, weight, eps)  # type: ignore[no-any-return]


def add_rms_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Residual sum and its RMS norm: `(x + y, rms_norm(x + y))`. x, y: [tokens, hidden]; the rest as for `rms_norm`."""
    return backend(x).add_rms_norm(x, y, weight, eps)  # type: ignore[no-any-return]


def add_rms_norm_from_one(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Residual sum and its RMS norm with the weight `1 + weight`: `(x + y, rms_norm_from_one(x + y))`."""
    return backend(x).add_rms_norm_from_one(x, y, weight, eps)  # type: ignore[no-any-return]


def add_layer_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Residual sum and its layer norm: `(x + y, layer_norm(x + y))`. x, y: [tokens, hidden]."""
    return backend(x).add_layer_norm(x, y, weight, bias, eps)  # type: ignore[no-any-return]


def sum_of_rows(
    lookups: Sequence[tuple[Tensor | None, Tensor]], scale: float = 1.0, onto: Tensor | None = None
) -> Tensor:
    """Sum of table rows: the embedding of tokens, positions and token types.

    lookups: one to three pairs of an index [rows], int64, and a table [count, width], one dtype; summed in order. An
        index of None uses row 0 of its table for all rows.
    scale: factor of the first table's rows, where `onto` is None.
    onto: [rows, width], initial value of the sum, or None. Without it the first lookup must have an index.
    Returns [rows, width]. Raises IndexError for an index outside its table.
    """
    return backend(lookups[0][1] if onto is None else onto).sum_of_rows(lookups, scale, onto)  # type: ignore[no-any-return]


def means_of_spans(x: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    """Mean of each span of rows, for pooling.

    x: [rows, width]. spans: first row and end, at least one row each.
    Returns [spans, width], float32.
    """
    return backend(x).means_of_spans(x, spans)  # type: ignore[no-any-return]


def scale_by_row(x: Tensor, factors: Tensor) -> Tensor:
    """Multiply each row by its factor, in float32.

    x: [rows, ...]. factors: [rows, 1], float32. Returns a tensor like x.
    """
    return backend(x).scale_by_row(x, factors)  # type: ignore[no-any-return]


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Gather rows. x: [rows, ...]. index: [n], int64. Returns [n, ...], contiguous."""
    return backend(x).take_rows(x, index)  # type: ignore[no-any-return]


def route(logits: Tensor, choices: int, config: RouterConfig, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Choose the experts of each token: those with the best scores. Among equal scores, the first expert is chosen.

    logits: [tokens, experts]. One that is not finite makes all shares of its token NaN.
    choices: experts of a token.
    config: how scores, choice and shares are computed, in float32.
    correction: [experts], float32, added to the scores for the choice only; or None.
    Returns shares, [tokens, choices], float32, and expert indices, [tokens, choices], int64, the best expert first.
    """
    return backend(logits).route(logits, choices, config, correction)  # type: ignore[no-any-return]


def rotate(x: Tensor, angles: RotaryAngles, interleaved: bool) -> Tensor:
    """Rotate query or key heads by their positions (rotary position embedding), in float32.

    x: [tokens, heads, head_dim], model dtype.
    angles: angles of `dim / 2` pairs, dim <= head_dim. Dimensions from `dim` on do not change.
    interleaved: pairs are (0, 1), (2, 3)..., else (0, dim / 2), (1, dim / 2 + 1)...
    Returns a new tensor like x. Source: Su et al. 2021, arXiv:2104.09864, section 3.4.2.
    """
    return backend(x).rotate(x, angles, interleaved)  # type: ignore[no-any-return]


def rotate_and_store(x: Tensor, value: Tensor, angles: RotaryAngles, interleaved: bool, store: CacheSlots) -> Tensor:
    """Rotate queries and keys, as `rotate`, and store the keys and the values in a paged cache, as `write_slots`.

    x: [tokens, heads + kv_heads, head_dim], queries, then keys. value: [tokens, kv_heads, value_dim]. Model dtype.
    Returns the rotated queries, [tokens, heads, head_dim].
    """
    chosen = backend(x)
    compute = torch_operations.rotate_and_store if chosen is cpu_operations else chosen.rotate_and_store
    return compute(x, value, angles, interleaved, store)


def gated_activation(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """`activation(gate) * up` of the two halves of one product.

    gate, up: [rows, width], model dtype; the last dimension contiguous.
    Returns [rows, width].
    """
    chosen = backend(gate)
    compute = torch_operations.gated_activation if chosen is cpu_operations else chosen.gated_activation
    return compute(gate, up, activation)


def xielu(x: Tensor, shape: XieluShape) -> Tensor:
    """The activation xIELU, computed in float32.

    It is `alpha_p * x ** 2 + beta * x` above zero, else `alpha_n * (expm1(min(x, eps)) - x) + beta * x`.

    x: [tokens, width].
    Returns a new tensor like x. Source: Huang and Schlag 2024, arXiv:2411.13010, section 4.
    """
    return backend(x).xielu(x, shape)  # type: ignore[no-any-return]


def write_slots(key_cache: CacheSide, value_cache: CacheSide, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Store new keys and values in a paged cache.

    key_cache, value_cache: [blocks, block_size, kv_heads, head_dim], or both in int8.
    slots: [tokens], int64: `block * block_size + offset`.
    key, value: [tokens, kv_heads, head_dim].
    """
    backend(key).write_slots(key_cache, value_cache, slots, key, value)


def copy_blocks(caches: Sequence[Tensor], copies: Sequence[tuple[int, int, int, int]]) -> None:
    """Copy slots between blocks in each cache, for a copy on write.

    caches: [blocks, block_size, kv_heads, head_dim] each, with equally many blocks.
    copies: (source block, destination block, first slot, end). A backend may copy further slots of the block. A block
        is never both a source and a destination.
    """
    copying = cpu_operations if _kernels and caches[0].is_cpu else torch_operations
    copying.copy_blocks(caches, copies)


def logits_top_k(logits: Tensor, k: int = 1, with_logsumexp: bool = False) -> LogitsTopK:
    """The k largest logits of each row. logits: [rows, vocab], float32; 1 <= k <= vocab."""
    chosen = backend(logits)
    if chosen is not cpu_operations:
        compute = torch_logits.logits_top_k if chosen is torch_operations else chosen.logits_top_k
        return compute(logits, k, with_logsumexp)
    result = LogitsTopK.empty(logits.shape[0], k, with_logsumexp)
    cpu_sampling.logits_top_k(logits, k, result)
    return result


def draw(logits: Tensor, rows: Sequence[Filters], uniforms: NDArray[np.float64]) -> Drawn:
    """Draw a token of each row from its filtered distribution. A row of -inf alone gives an arbitrary token.

    logits: [rows, vocab], float32, not modified.
    uniforms: [rows], in [0, 1): share of the distribution before the drawn token.
    """
    chosen = backend(logits)
    if chosen is cpu_operations:
        return cpu_sampling.draw(logits, rows, uniforms)
    compute = torch_sampling.draw if chosen is torch_operations else chosen.draw
    return compute(logits, rows, uniforms)
