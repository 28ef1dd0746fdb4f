"""The operations of mixers, and the choice of the backend that computes them, as in `interface`.

A step processes one token of each row. `slots`, [rows], int64: the slot of each row in the memory of the states; no two
rows have the same slot. A chunk processes consecutive tokens of one text. States are float32; both read and update
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from torch import Tensor

from models.backends.cpu import mixers as cpu_mixers
from models.backends.cpu import operations as cpu_operations
from models.backends.interface import backend
from models.backends.operands import ConvolutionNumbers, DeltaNumbers, GatedNormShape, SpaceNumbers
from models.backends.torch import mixer_chunks as torch_chunks
from models.backends.torch import mixers as torch_mixers


def _mixers(x: Tensor) -> ModuleType:
    return cpu_mixers if backend(x) is cpu_operations else torch_mixers


def convolution_step(
    parts: Sequence[Tensor], scales: Sequence[float], convolution: ConvolutionNumbers, windows: Tensor, slots: Tensor
) -> Tensor:
    """Convolve one token of each row with the tokens before it, then apply SiLU, in float32.

    parts: [rows, features] each, model dtype, with all channels in order. scales: factor of each part.
    windows: [slots, taps - 1, channels], the earlier inputs.
    Returns [rows, channels], float32.
    """
    return _mixers(parts[0]).convolution_step(parts, scales, convolution, windows, slots)  # type: ignore[no-any-return]


def gated_convolution_step(
    x: Tensor, gate: Tensor, multiplier: Tensor, convolution: ConvolutionNumbers, windows: Tensor, slots: Tensor
) -> Tensor:
    """Convolve `x * gate` of each row with the tokens before it, times `multiplier`.

    x, gate, multiplier: [rows, channels], model dtype, all with the same row stride.
    windows: as for `convolution_step`.
    Returns [rows, channels], model dtype.
    """
    return _mixers(x).gated_convolution_step(x, gate, multiplier, convolution, windows, slots)  # type: ignore[no-any-return]


def gated_delta_step(
    inputs: Tensor, beta: Tensor, decay: Tensor, numbers: DeltaNumbers, memory: Tensor, slots: Tensor
) -> Tensor:
    """Gated delta rule for one token of each row.

    inputs: [rows, features], float32, contiguous: queries, keys, values.
    beta, decay: [rows, heads], model dtype, before sigmoid and softplus.
    memory: [slots, heads, key_dim, value_dim].
    Returns [rows, heads * value_dim], model dtype. Source: Yang et al. 2024, arXiv:2412.06464, equation 10.
    """
    return _mixers(beta).gated_delta_step(inputs, beta, decay, numbers, memory, slots)  # type: ignore[no-any-return]


def state_space_step(inputs: Tensor, time_step: Tensor, numbers: SpaceNumbers, memory: Tensor, slots: Tensor) -> Tensor:
    """Selective state space for one token of each row.

    inputs: [rows, features], float32, contiguous: values, keys, queries.
    time_step: [rows, heads], model dtype, before softplus.
    memory: [slots, heads, head_dim, state_size].
    Returns [rows, heads * head_dim], model dtype. Source: Dao and Gu 2024, arXiv:2405.21060, section 2.1.
    """
    return _mixers(time_step).state_space_step(inputs, time_step, numbers, memory, slots)  # type: ignore[no-any-return]


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor | None, shape: GatedNormShape) -> Tensor:
    """RMS norm of each group of features, with the factor `silu(gate_scale * gate)`, in float32 until the result.

    x, gate: [rows, groups * width], model dtype. weight: [groups * width], or [width] if `is_shared`; None: no norm.
    gate_first: the factor is applied before the norm.
    Returns a new tensor like x.
    """
    return _mixers(x).gated_norm(x, gate, weight, shape)  # type: ignore[no-any-return]


def convolution_chunk(
    parts: Sequence[Tensor], scales: Sequence[float], convolution: ConvolutionNumbers, window: Tensor
) -> Tensor:
    """`convolution_step` for consecutive tokens of one text. window: [taps - 1, channels]."""
    return torch_chunks.convolution_chunk(parts, scales, convolution, window)


def gated_convolution_chunk(
    x: Tensor, gate: Tensor, multiplier: Tensor, convolution: ConvolutionNumbers, window: Tensor
) -> Tensor:
    """`gated_convolution_step` for consecutive tokens of one text. window: [taps - 1, channels]."""
    return torch_chunks.gated_convolution_chunk(x, gate, multiplier, convolution, window)


def gated_delta_chunks(inputs: Tensor, beta: Tensor, decay: Tensor, numbers: DeltaNumbers, memory: Tensor) -> Tensor:
    """`gated_delta_step` for consecutive tokens of one text, in chunks. memory: [heads, key_dim, value_dim].

    Source: Yang et al. 2024, arXiv:2412.06464, section 3.3.
    """
    return torch_chunks.gated_delta_chunks(inputs, beta, decay, numbers, memory)


def state_space_chunks(inputs: Tensor, time_step: Tensor, numbers: SpaceNumbers, memory: Tensor) -> Tensor:
    """`state_space_step` for consecutive tokens of one text, in chunks. memory: [heads, head_dim, state_size].

    Source: Dao and Gu 2024, arXiv:2405.21060, section 6.
    """
    return torch_chunks.state_space_chunks(inputs, time_step, numbers, memory)
