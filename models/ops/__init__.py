"""One function for each hot operation. Layers call these; how they are done is decided here.

`torch_ops` is the reference: any device, any dtype. `cpu_ops` are compiled kernels for a CPU, used for the dtypes they
know where the installation built them; each is tested against the reference. `use` chooses for the whole process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from models.attention_plan import AttentionPlan
from models.config import Activation
from models.ops import cpu_ops, torch_ops
from models.ops.torch_disentangled import disentangled_attention

__all__ = [
    "PackedLinear",
    "PackedTable",
    "block_attention",
    "disentangled_attention",
    "implementation",
    "kernels_are_built",
    "layer_norm",
    "linear",
    "packed_attention",
    "packer",
    "paged_attention",
    "rms_norm",
    "rotate",
    "using",
    "write_slots",
]


class PackedLinear(Protocol):
    """A weight in its fastest layout. Calling it: [rows, in] -> [rows, out], like `Linear.forward`."""

    def __call__(self, x: Tensor, activation: Activation | None = None, times: Tensor | None = None) -> Tensor: ...

    @property
    def nbytes(self) -> int:
        """Memory that it takes beyond what is shared with the model."""


@runtime_checkable
class PackedTable(PackedLinear, Protocol):
    """One that also gives its weight's rows, so that a table of embeddings and an output head are one. rows: [n], int64
    -> [n, in]."""

    def rows(self, index: Tensor) -> Tensor: ...


Quantization = Literal["int8"]

_kernels = cpu_ops.available()
kernels_are_built = _kernels
"""Whether this installation has the compiled kernels; without them a CPU computes with torch alone."""


def implementation(x: Tensor) -> ModuleType:
    """The module whose operations are used for tensors like `x`."""
    return cpu_ops if _kernels and cpu_ops.takes(x) else torch_ops


@contextmanager
def using(name: Literal["torch", "cpu"]) -> Iterator[None]:
    """Compute with these operations only, in the whole process: for tests and comparisons."""
    global _kernels
    before = _kernels
    assert name == "torch" or cpu_ops.available(), "the compiled kernels were not built"
    _kernels = name == "cpu"
    try:
        yield
    finally:
        _kernels = before


def packer(
    dtype: torch.dtype, device: torch.device, quantization: Quantization | None = None
) -> Callable[[Tensor, Tensor | None], PackedLinear] | None:
    """What puts a linear's weight into its fastest layout; None where the plain one is it."""
    if not (_kernels and cpu_ops.takes(torch.empty(0, dtype=dtype, device=device))):
        return torch_ops.Int8Linear if quantization == "int8" else None
    return cpu_ops.Int8Linear if quantization == "int8" else cpu_ops.FloatLinear


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `torch_ops.linear`."""
    return implementation(x).linear(x, weight, bias)  # type: ignore[no-any-return]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """See `torch_ops.layer_norm`: torch's own is as fast as memory."""
    return torch_ops.layer_norm(x, weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `torch_ops.rms_norm`."""
    return implementation(x).rms_norm(x, weight, eps)  # type: ignore[no-any-return]


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """See `torch_ops.rotate`."""
    return implementation(x).rotate(x, cos, sin, interleaved)  # type: ignore[no-any-return]


def write_slots(key_cache: Tensor, value_cache: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """See `torch_ops.write_slots`."""
    implementation(key).write_slots(key_cache, value_cache, slots, key, value)


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scale: float, cap: float | None = None
) -> Tensor:
    """See `torch_ops.packed_attention`."""
    return torch_ops.packed_attention(query, key, value, plan, scale, cap)


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, plan: AttentionPlan, scale: float, cap: float | None = None
) -> Tensor:
    """See `torch_ops.paged_attention`."""
    return implementation(query).paged_attention(query, key_cache, value_cache, plan, scale, cap)  # type: ignore[no-any-return]


def block_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """See `torch_ops.block_attention`."""
    return torch_ops.block_attention(query, key, value, mask, scale)
