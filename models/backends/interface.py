"""One function for each hot operation. Layers call these; how they are done is decided here.

`torch_ops` is the reference: any device, any dtype. `cpu_ops` are compiled kernels for a CPU, used for the dtypes they
know where the installation built them; each is tested against the reference. `use` chooses for the whole process.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.attention_metadata import AttentionPlan
from models.backends.cpu import linear as cpu_linear
from models.backends.cpu import logits as cpu_choice
from models.backends.cpu import operations as cpu_ops
from models.backends.cpu import recorded_ops, recording
from models.backends.cpu.program import Program
from models.backends.torch import logits as torch_choice
from models.backends.torch import operations as torch_ops
from models.backends.torch import sampling as torch_sampling
from models.backends.torch.disentangled_attention import disentangled_attention
from models.backends.torch.logits import Survey
from models.backends.torch.sampling import Drawn, Filters
from models.config import Activation

__all__ = [
    "Filters",
    "PackedWeight",
    "Product",
    "Program",
    "Survey",
    "attention_dtype",
    "block_attention",
    "copy_blocks",
    "disentangled_attention",
    "draw",
    "implementation",
    "kernels_are_built",
    "layer_norm",
    "linear",
    "means_of_spans",
    "packed_attention",
    "packer",
    "paged_attention",
    "records",
    "rms_norm",
    "rms_norm_from_one",
    "rotate",
    "sum_of_rows",
    "survey",
    "survey_given",
    "take_rows",
    "using",
    "write_slots",
]


class Product(Protocol):
    """What a linear multiplies by in place of its weight: [rows, in] -> [rows, out], like `Linear.forward`."""

    def __call__(self, x: Tensor, activation: Activation | None = None, times: Tensor | None = None) -> Tensor: ...


class PackedWeight(Product, Protocol):
    """A weight in its fastest layout.

    Calling it: out: [rows or more, out], contiguous: memory whose first rows the result is written to.
    """

    def __call__(
        self,
        x: Tensor,
        activation: Activation | None = None,
        times: Tensor | None = None,
        *,
        out: Tensor | None = None,
    ) -> Tensor: ...

    @property
    def nbytes(self) -> int:
        """Memory that it takes beyond what is shared with the model."""

    def part(self, first: int, end: int) -> PackedWeight | None:
        """Columns first..end-1 as one of their own, in the same memory; None where they do not lie apart."""

    def rows(self, index: Tensor) -> Tensor:
        """Rows of the weight, so that a table of embeddings and a head are one: [n], int64 -> [n, in]. Raises
        IndexError."""


Quantization = Literal["int8"]

_kernels = cpu_ops.available()
_programs = True
kernels_are_built = _kernels
"""Whether this installation has the compiled kernels; without them a CPU computes with torch alone."""


def implementation(x: Tensor) -> ModuleType:
    """The module whose operations are used for tensors like `x`; `Rows` are recorded."""
    if isinstance(x, recording.Rows):
        return recorded_ops
    return cpu_ops if _kernels and cpu_ops.takes(x) else torch_ops


def records(x: Tensor) -> bool:
    """Whether the layers that `x` goes through may be run as a program."""
    return _programs and _kernels and cpu_ops.takes(x)


@contextmanager
def using(name: Literal["torch", "cpu"], programs: bool = True) -> Iterator[None]:
    """Compute with these operations only, in the whole process: for tests and comparisons.

    programs: whether layers are run as programs where they can be, or all operation by operation.
    """
    global _kernels, _programs
    before = _kernels, _programs
    assert name == "torch" or cpu_ops.available(), "the compiled kernels were not built"
    _kernels, _programs = name == "cpu", programs
    try:
        yield
    finally:
        _kernels, _programs = before


def attention_dtype(dtype: torch.dtype, quantization: Quantization | None) -> torch.dtype:
    """Of queries, keys and values, and of what attention gives, in a model of this dtype.

    Beside products in int8, float32 is more than they are worth: half the bytes lose less than the rounding does.
    """
    return torch.bfloat16 if quantization == "int8" and dtype == torch.float32 else dtype


def packer(
    dtype: torch.dtype,
    device: torch.device,
    quantization: Quantization | None = None,
    writes: torch.dtype | None = None,
) -> Callable[[Tensor, Tensor | None], PackedWeight] | None:
    """What puts a linear's weight into its fastest layout; None where the plain one is it.

    writes: the dtype of what the products give, `dtype` where None. Those of floats give that or float32; without the
    kernels they are plain ones and give what they read.
    """
    kernels = _kernels and cpu_ops.takes(torch.empty(0, dtype=dtype, device=device))
    if quantization == "int8":
        return partial(cpu_linear.Int8Linear if kernels else torch_ops.Int8Linear, writes=writes)
    return partial(cpu_linear.FloatLinear, writes=writes) if kernels else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `torch_ops.linear`."""
    return implementation(x).linear(x, weight, bias)  # type: ignore[no-any-return]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """See `torch_ops.layer_norm`."""
    return implementation(x).layer_norm(x, weight, bias, eps)  # type: ignore[no-any-return]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `torch_ops.rms_norm`."""
    return implementation(x).rms_norm(x, weight, eps)  # type: ignore[no-any-return]


def rms_norm_from_one(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `torch_ops.rms_norm_from_one`."""
    return implementation(x).rms_norm_from_one(x, weight, eps)  # type: ignore[no-any-return]


def sum_of_rows(
    parts: Sequence[tuple[Tensor | None, Tensor]], scale: float = 1.0, onto: Tensor | None = None
) -> Tensor:
    """See `torch_ops.sum_of_rows`."""
    return implementation(parts[0][1]).sum_of_rows(parts, scale, onto)  # type: ignore[no-any-return]


def means_of_spans(x: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    """See `torch_ops.means_of_spans`."""
    return implementation(x).means_of_spans(x, spans)  # type: ignore[no-any-return]


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """See `torch_ops.take_rows`."""
    return implementation(x).take_rows(x, index)  # type: ignore[no-any-return]


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """See `torch_ops.rotate`."""
    return implementation(x).rotate(x, cos, sin, interleaved)  # type: ignore[no-any-return]


def write_slots(key_cache: Tensor, value_cache: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """See `torch_ops.write_slots`."""
    implementation(key).write_slots(key_cache, value_cache, slots, key, value)


def copy_blocks(caches: Sequence[Tensor], copies: Sequence[tuple[int, int, int, int]]) -> None:
    """See `torch_ops.copy_blocks`."""
    implementation(caches[0]).copy_blocks(caches, copies)


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scale: float, cap: float | None = None
) -> Tensor:
    """See `torch_ops.packed_attention`."""
    return implementation(query).packed_attention(query, key, value, plan, scale, cap)  # type: ignore[no-any-return]


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, plan: AttentionPlan, scale: float, cap: float | None = None
) -> Tensor:
    """See `torch_ops.paged_attention`."""
    return implementation(query).paged_attention(query, key_cache, value_cache, plan, scale, cap)  # type: ignore[no-any-return]


def block_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """See `torch_ops.block_attention`."""
    return torch_ops.block_attention(query, key, value, mask, scale)


def survey(logits: Tensor, count: int = 1, with_log_sums: bool = False) -> Survey:
    """See `torch_choice.survey`."""
    way = cpu_choice.survey if implementation(logits) is cpu_ops else torch_choice.survey
    return way(logits, count, with_log_sums)


def survey_given(seen: Survey) -> dict[Hashable, int]:
    """What a program is run with whose last operation is a survey, by the names of `recorded_ops.survey`."""
    return {("survey", name): value for name, value in cpu_choice.survey_fields(seen).items()}


def draw(logits: Tensor, rows: Sequence[Filters], uniforms: NDArray[np.float64]) -> Drawn:
    """See `torch_sampling.draw`."""
    way = cpu_choice.draw if implementation(logits) is cpu_ops else torch_sampling.draw
    return way(logits, rows, uniforms)
