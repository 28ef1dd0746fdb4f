"""Mixer operations of a decode step, in plain torch.

Each row of a result has the same bits for every number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from models.backends.operands import ConvolutionNumbers, DeltaNumbers, GatedNormShape, SpaceNumbers
from models.backends.torch.activations import activate, by_rows

_NORM_EPS = 1e-6
"""Epsilon for scaling the queries and keys of the gated delta rule to unit length."""


class TorchMixers:
    """Mixer operations for one token of each row. They update the state of each row in place."""

    def convolution_step(
        self,
        parts: Sequence[Tensor],
        scales: Sequence[float],
        convolution: ConvolutionNumbers,
        windows: Tensor,
        slots: Tensor,
    ) -> Tensor:
        """Convolve one token of each row with the tokens before it, then apply SiLU, in float32.

        parts: [rows, features] each, model dtype, with all channels in order. scales: factor of each part.
        windows: [slots, taps - 1, channels], the earlier inputs of each slot, updated in place.
        slots: [rows], int64: slot of each row.
        Returns [rows, channels], float32.
        """
        x = torch.cat([part.float() * scale for part, scale in zip(parts, scales, strict=True)], dim=-1)
        return activate(_convolve(x, convolution, windows, slots), "silu")

    def gated_convolution_step(
        self,
        x: Tensor,
        gate: Tensor,
        multiplier: Tensor,
        convolution: ConvolutionNumbers,
        windows: Tensor,
        slots: Tensor,
    ) -> Tensor:
        """Convolve `x * gate` of each row with the tokens before it, and multiply the result by `multiplier`.

        x, gate, multiplier: [rows, channels], model dtype, all with the same row stride.
        windows: [slots, taps - 1, channels], the earlier inputs of each slot, updated in place.
        slots: [rows], int64: slot of each row.
        Returns [rows, channels], model dtype.
        """
        return _convolve((x * gate).float(), convolution, windows, slots).to(x.dtype) * multiplier

    def gated_delta_step(
        self, inputs: Tensor, beta: Tensor, decay: Tensor, numbers: DeltaNumbers, memory: Tensor, slots: Tensor
    ) -> Tensor:
        """Gated delta rule for one token of each row.

        inputs: [rows, features], float32, contiguous: the queries, keys and values of a row, concatenated.
        beta, decay: [rows, heads], model dtype, before sigmoid and softplus.
        memory: [slots, heads, key_dim, value_dim], updated in place. slots: [rows], int64: slot of each row.
        Returns [rows, heads * value_dim], model dtype. Source: Yang et al. 2024, arXiv:2412.06464, equation 10.
        """
        _, heads, key_dim, _ = memory.shape
        query, key, value = delta_heads(inputs, heads, numbers.key_heads, key_dim)
        strength, log_decay = delta_gates(beta, decay, numbers)
        states = memory[slots] * by_rows(torch.exp, log_decay)[..., None, None]
        correction = (value - (states * key[..., None]).sum(-2)) * strength[..., None]
        states = states + key[..., None] * correction[..., None, :]
        memory[slots] = states
        return (states * query[..., None]).sum(-2).flatten(1).to(beta.dtype)

    def state_space_step(
        self, inputs: Tensor, time_step: Tensor, numbers: SpaceNumbers, memory: Tensor, slots: Tensor
    ) -> Tensor:
        """Selective state space for one token of each row.

        inputs: [rows, features], float32, contiguous: the values, keys and queries of a row, concatenated.
        time_step: [rows, heads], model dtype, before softplus.
        memory: [slots, heads, head_dim, state_size], updated in place. slots: [rows], int64: slot of each row.
        Returns [rows, heads * head_dim], model dtype. Source: Dao and Gu 2024, arXiv:2405.21060, section 2.1.
        """
        _, heads, head_dim, _ = memory.shape
        values, keys, queries = space_heads(inputs, heads, head_dim, numbers.groups)
        keys, queries = (
            tensor.repeat_interleave(heads // numbers.groups, dim=1)[:, :, None] for tensor in (keys, queries)
        )
        steps = time_steps(time_step, numbers)
        states = memory[slots] * by_rows(torch.exp, steps * numbers.decay_factors)[..., None, None]
        states = states + (values * steps[..., None])[..., None] * keys
        memory[slots] = states
        return ((states * queries).sum(-1) + values * numbers.skip[:, None]).flatten(1).to(time_step.dtype)

    def gated_norm(self, x: Tensor, gate: Tensor, weight: Tensor | None, shape: GatedNormShape) -> Tensor:
        """RMS norm of each group of features, multiplied by `silu(gate_scale * gate)`. Computed in float32.

        x, gate: [rows, groups * width], model dtype.
        weight: [groups * width], or [width] if `shape.is_shared`. None leaves out the norm.
        shape: with `gate_first`, the gate is applied before the norm.
        Returns a new tensor like x.
        """
        y, factor = x.float(), activate(gate.float() * shape.gate_scale, "silu")
        if weight is None:
            return (y * factor).to(x.dtype)
        if shape.gate_first:
            y = y * factor
        parts = y.reshape(len(y), shape.groups, -1)
        parts = parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + shape.eps)
        weight = weight.float()
        y = (parts * weight).flatten(-2) if shape.is_shared else parts.flatten(-2) * weight
        return (y if shape.gate_first else y * factor).to(x.dtype)


def _convolve(x: Tensor, convolution: ConvolutionNumbers, windows: Tensor, slots: Tensor) -> Tensor:
    inputs = torch.cat([windows[slots], x[:, None]], dim=1)
    windows[slots] = inputs[:, 1:]
    return weighted_sum(inputs.unbind(1), convolution)


def weighted_sum(taps: Sequence[Tensor], convolution: ConvolutionNumbers) -> Tensor:
    """Result of a convolution: the sum of the bias and of each input times the weights of its tap.

    taps: [rows, channels] each, one tensor per tap, the earliest token first.
    """
    total = taps[0] * convolution.weights[0]
    for tap, weight in zip(taps[1:], convolution.weights[1:], strict=True):
        total = total + tap * weight
    return total if convolution.bias is None else total + convolution.bias


def delta_heads(inputs: Tensor, heads: int, key_heads: int, key_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split the inputs of a gated delta rule into queries, keys and values.

    inputs: [rows, features], float32: queries and keys of `key_heads` heads, and values of `heads` heads, concatenated.
    Returns queries, [rows, heads, key_dim], of length `1 / sqrt(key_dim)`; keys of the same shape, of length 1; and
    values, [rows, heads, value_dim].
    """
    query, key, value = inputs.tensor_split([key_heads * key_dim, 2 * key_heads * key_dim], dim=-1)
    query, key = (
        _unit_length(tensor.reshape(len(tensor), key_heads, key_dim)).repeat_interleave(heads // key_heads, dim=1)
        for tensor in (query, key)
    )
    return query / key_dim**0.5, key, value.reshape(len(value), heads, -1)


def _unit_length(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + _NORM_EPS)


def delta_gates(beta: Tensor, decay: Tensor, numbers: DeltaNumbers) -> tuple[Tensor, Tensor]:
    """For each row and head, the strength of the correction and the logarithm of the decay: [rows, heads], float32.

    beta, decay: [rows, heads], model dtype, before sigmoid and softplus.
    """
    step = by_rows(F.softplus, decay.float() + numbers.decay_bias)
    return by_rows(torch.sigmoid, beta.float()) * numbers.strength, step * numbers.decay_factors


def space_heads(inputs: Tensor, heads: int, head_dim: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split the inputs of a state space into values, keys and queries.

    inputs: [rows, features], float32: the values, keys and queries of a row, concatenated.
    Returns values, [rows, heads, head_dim], then keys and queries, [rows, groups, state_size].
    """
    width = heads * head_dim
    values, keys, queries = inputs.tensor_split([width, width + (inputs.shape[-1] - width) // 2], dim=-1)
    keys, queries = keys.reshape(len(keys), groups, -1), queries.reshape(len(queries), groups, -1)
    return values.reshape(len(values), heads, head_dim), keys, queries


def time_steps(time_step: Tensor, numbers: SpaceNumbers) -> Tensor:
    """Time step of each row and head: `softplus(time_step * time_scale + time_step_bias)`, [rows, heads], float32."""
    return by_rows(F.softplus, time_step.float() * numbers.time_scale + numbers.time_step_bias)
