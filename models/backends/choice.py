"""Choose the backend that computes with a tensor, and say what the backends of a device can do.

`backends/torch` is the reference: any device, any float dtype. `backends/cpu` has compiled kernels for float32 and
bfloat16 on a CPU, and records operations on symbolic tensors. `backends/cuda` has Triton kernels for CUDA devices.
The device and dtype of a tensor, and the processor, determine its backend. Tests compare each backend with the
reference. The operations are documented in `backends/torch`, the layouts of weights in `linear_weights`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from models.backends import fixed_order
from models.backends.cpu import library
from models.backends.cpu.backend import CPU
from models.backends.cpu.library import StaleKernels as StaleKernels
from models.backends.cpu.missing import why_kernels_are_missing
from models.backends.cpu.operations import available, takes
from models.backends.cpu.programs.trace import SymbolicTensor
from models.backends.torch.backend import TORCH, Backend

MIN_CUDA_CAPABILITY = (8, 0)
"""Lowest compute capability that the Triton kernels support (Ampere). The tests compile the kernels for it."""
_CUDA_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})

Quantization = Literal[
    "int8",
    "int8-fast",
    "int6",
    "int5",
    "int4",
    "int4-32",
    "int4-64",
    "int4-128",
    "int4-32-zero",
    "int4-64-zero",
    "int4-128-zero",
]

kernels_are_built = available()
"""Whether this installation has compiled kernels; without them a CPU computes with torch."""

programs_are_enabled = kernels_are_built
"""Whether layers may run as programs. `using` can switch this off."""

_kernels = kernels_are_built
_cuda_kernels: Literal["on_cuda", "always", "never"] = "on_cuda"
"""Where the Triton kernels compute: on CUDA devices, on any device (in Triton's interpreter), or nowhere."""


class QuantizationUnavailable(ValueError):
    """A setting asks for quantised weights or a rounded cache, but no kernel on this device computes with them."""


class BatchInvarianceUnavailable(ValueError):
    """The setting `--batch-invariant` does not apply to this device."""


def backend(x: Tensor) -> Backend:
    """The backend for tensors with the device and dtype of `x`. Symbolic tensors get the CPU backend."""
    if (_kernels and takes(x)) or isinstance(x, SymbolicTensor):
        return CPU
    if x.dtype in _CUDA_DTYPES and runs_cuda_kernels(x.device):
        return _cuda_backend()
    return TORCH


def runs_kernels(x: Tensor) -> bool:
    """Whether the compiled CPU kernels compute with tensors of the device and dtype of `x`."""
    return _kernels and takes(x)


def check_kernels() -> None:
    """Raise StaleKernels if the compiled kernels were built from another version of Triptych."""
    library.load()


@contextmanager
def using(
    name: Literal["torch", "cpu", "cuda"], programs: bool = True, batch_invariant: bool = False
) -> Iterator[None]:
    """Use one backend in the whole process, for tests and comparisons. `cuda` needs Triton's interpreter on a CPU.

    programs: whether layers may run as programs; False runs them eagerly. Only the CPU backend has programs.
    batch_invariant: value of `fixed_order.enabled`.
    """
    global _kernels, _cuda_kernels, programs_are_enabled
    before = _kernels, _cuda_kernels, programs_are_enabled, fixed_order.enabled
    assert name != "cpu" or kernels_are_built, "the compiled kernels were not built"
    _kernels, programs_are_enabled = name == "cpu", name == "cpu" and programs
    _cuda_kernels, fixed_order.enabled = "always" if name == "cuda" else "never", batch_invariant
    try:
        yield
    finally:
        _kernels, _cuda_kernels, programs_are_enabled, fixed_order.enabled = before


def use_batch_invariance(device: torch.device) -> None:
    """Make the models that this process loads give a request the same bits alone and in a batch.

    Raises BatchInvarianceUnavailable on a device without Triton kernels.
    """
    if device.type == "cpu" and kernels_are_built:
        raise BatchInvarianceUnavailable(
            "--batch-invariant is for CUDA devices: the CPU kernels give a request the same bits alone and in a batch "
            "without it"
        )
    if not runs_cuda_kernels(device):
        raise BatchInvarianceUnavailable(f"--batch-invariant needs {_A_DEVICE}")
    fixed_order.enabled = True


def runs_cuda_kernels(device: torch.device) -> bool:
    """Whether the Triton kernels compute on a device."""
    return _cuda_kernels == "always" or (_cuda_kernels == "on_cuda" and _has_triton(device))


@cache
def _has_triton(device: torch.device) -> bool:
    """Whether the Triton kernels can run on a device: a recent CUDA device, with triton installed.

    Does not import triton, which takes a second.
    """
    if device.type != "cuda" or find_spec("triton") is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) >= MIN_CUDA_CAPABILITY


@cache
def _cuda_backend() -> Backend:
    """The backend with the Triton kernels. Imports triton, which takes a second."""
    from models.backends.cuda.operations import CUDA

    return CUDA


def kernels_are_generic() -> bool:
    """Whether the compiled kernels are the generic ones (`isa_baseline.cpp`), because this is no x86-64 processor."""
    return kernels_are_built and platform.machine().lower() not in ("x86_64", "amd64")


def has_kernels(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the compiled CPU kernels compute with hidden states of a dtype on a device."""
    return _kernels and device.type == "cpu" and dtype in library.DTYPE_CODES


def check_quantization(dtype: torch.dtype, device: torch.device, quantization: Quantization | None) -> None:
    """Raise QuantizationUnavailable if the backend has no kernel for quantised weights.

    Without such a kernel, a quantised product would be slower than a float product.

    dtype: dtype of hidden states. quantization: None is always accepted.
    """
    if quantization is not None and not runs_cuda_kernels(device):
        _check_kernels_of(f"--quantize {quantization}", dtype, device, f", or {_A_DEVICE}")


def check_cache(kind: Literal["int8", "fp8"], dtype: torch.dtype, device: torch.device) -> None:
    """Raise QuantizationUnavailable if the backend has no kernel that reads keys and values of this kind.

    The compiled CPU kernels read int8; the Triton kernels read int8 and fp8. Without such a kernel, attention would
    first convert the whole cache.

    kind: dtype of the cached keys and values. dtype: dtype of the queries, and of keys and values before rounding.
    """
    if runs_cuda_kernels(device):
        return
    if kind == "fp8":
        raise QuantizationUnavailable(f"--kv-cache-dtype fp8 needs {_A_DEVICE}")
    _check_kernels_of("--kv-cache-dtype int8", dtype, device, f", or {_A_DEVICE}")


_A_DEVICE = "a CUDA device of compute capability 8.0 or later with triton"


def _check_kernels_of(setting: str, dtype: torch.dtype, device: torch.device, otherwise: str = "") -> None:
    """Raise QuantizationUnavailable if the compiled CPU kernels do not run with this dtype and device.

    setting: the setting that needs the kernels, for the message.
    otherwise: end of the message that names an alternative to the kernels, for example a CUDA device; or empty.
    """
    reason = why_no_kernels(dtype, device)
    if reason is not None:
        needs = f"a CPU, float32 or bfloat16, and the compiled kernels{otherwise}"
        raise QuantizationUnavailable(f"{setting} needs {needs}: {reason}")


def why_no_kernels(dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the compiled CPU kernels do not compute with hidden states of a dtype on a device; None if they do."""
    if has_kernels(dtype, device):
        return None
    if device.type != "cpu":
        return f"the model runs on {device.type}"
    return f"the model computes in {str(dtype).removeprefix('torch.')}" if _kernels else why_kernels_are_missing()


def kernels_version() -> str:
    """SHA-256 of the interface of the compiled kernels, which determines the layouts of packed weights.

    The text is empty if this installation has no compiled kernels.
    """
    return library.interface_hash() if kernels_are_built else ""


def is_amx_refused() -> bool:
    """Whether the processor has a matrix unit (AMX) that the system does not let this process use."""
    return library.is_amx_refused()
