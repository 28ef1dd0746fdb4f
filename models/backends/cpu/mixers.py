"""Mixer operations of a decode step (convolutions, gated delta rule, state space, gated norm), by compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from models.backends.cpu.operations import has_dense_rows, run
from models.backends.operands import ConvolutionNumbers, DeltaNumbers, GatedNormShape, SpaceNumbers
from models.backends.torch.mixers import TorchMixers

MAX_HEAD_DIM = 512
"""Largest key or value width of a head in the kernel for the gated delta rule (`MAX_MIXER_DIM` in kernels.h)."""


class CpuMixers(TorchMixers):
    """Mixer operations for one token of each row, by compiled kernels. They update the state of each row in place."""

    def convolution_step(
        self,
        parts: Sequence[Tensor],
        scales: Sequence[float],
        convolution: ConvolutionNumbers,
        windows: Tensor,
        slots: Tensor,
    ) -> Tensor:
        channels = convolution.weights.shape[1]
        out = parts[0].new_empty((parts[0].shape[0], channels), dtype=torch.float32)
        first = 0
        for part, scale in zip(parts, scales, strict=True):
            end = first + part.shape[1]
            _convolve(part, None, None, scale, first, out[:, first:end], convolution, windows, slots)
            first = end
        return out

    def gated_convolution_step(
        self,
        x: Tensor,
        gate: Tensor,
        multiplier: Tensor,
        convolution: ConvolutionNumbers,
        windows: Tensor,
        slots: Tensor,
    ) -> Tensor:
        out = x.new_empty((x.shape[0], x.shape[1]))
        _convolve(x, gate, multiplier, 1.0, 0, out, convolution, windows, slots)
        return out

    def gated_delta_step(
        self, inputs: Tensor, beta: Tensor, decay: Tensor, numbers: DeltaNumbers, memory: Tensor, slots: Tensor
    ) -> Tensor:
        _, heads, key_dim, value_dim = memory.shape
        if max(key_dim, value_dim) > MAX_HEAD_DIM or numbers.strength != 1.0:
            return super().gated_delta_step(inputs, beta, decay, numbers, memory, slots)
        rows = inputs.shape[0]
        out = beta.new_empty((rows, heads * value_dim))
        run(
            "gated_delta_step",
            beta.dtype,
            beta,
            inputs=inputs,
            beta=beta,
            beta_stride=beta.stride(0),
            decay=decay,
            decay_stride=decay.stride(0),
            decay_bias=numbers.decay_bias,
            decay_factors=numbers.decay_factors,
            memory=memory,
            slots=slots,
            out=out,
            rows=rows,
            heads=heads,
            key_heads=numbers.key_heads,
            key_dim=key_dim,
            value_dim=value_dim,
        )
        return out

    def state_space_step(
        self, inputs: Tensor, time_step: Tensor, numbers: SpaceNumbers, memory: Tensor, slots: Tensor
    ) -> Tensor:
        _, heads, head_dim, state_size = memory.shape
        rows = inputs.shape[0]
        out = time_step.new_empty((rows, heads * head_dim))
        run(
            "state_space_step",
            time_step.dtype,
            time_step,
            inputs=inputs,
            time_step=time_step,
            stride=time_step.stride(0),
            time_step_bias=numbers.time_step_bias,
            decay_factors=numbers.decay_factors,
            skip=numbers.skip,
            memory=memory,
            slots=slots,
            out=out,
            rows=rows,
            heads=heads,
            head_dim=head_dim,
            groups=numbers.groups,
            state_size=state_size,
            time_scale=numbers.time_scale,
        )
        return out

    def gated_norm(self, x: Tensor, gate: Tensor, weight: Tensor | None, shape: GatedNormShape) -> Tensor:
        x = x.contiguous()
        gate = gate if has_dense_rows(gate) else gate.contiguous()
        rows, width = x.shape
        out = x.new_empty((rows, width))
        run(
            "gated_norm",
            x.dtype,
            x,
            x=x,
            gate=gate,
            stride=gate.stride(0),
            weight=weight,
            out=out,
            rows=rows,
            groups=shape.groups,
            width=width // shape.groups,
            is_shared=shape.is_shared,
            gate_first=shape.gate_first,
            eps=shape.eps,
            gate_scale=shape.gate_scale,
        )
        return out


def _convolve(
    x: Tensor,
    gate: Tensor | None,
    multiplier: Tensor | None,
    scale: float,
    first: int,
    out: Tensor,
    convolution: ConvolutionNumbers,
    windows: Tensor,
    slots: Tensor,
) -> None:
    """Run the convolution kernel for some channels.

    x, gate, multiplier: [rows, features], all with the row stride of x. Without a multiplier, the kernel applies SiLU
        to the result.
    scale: factor of x. first: index of the first of these channels in `convolution`.
    out: [rows, features], memory for the result.
    """
    taps, channels = convolution.weights.shape
    run(
        "convolution_step",
        x.dtype,
        x,
        x=x,
        gate=gate,
        multiplier=multiplier,
        stride=x.stride(0),
        weights=convolution.weights,
        bias=convolution.bias,
        windows=windows,
        slots=slots,
        out=out,
        out_stride=out.stride(0),
        rows=x.shape[0],
        width=x.shape[1],
        first=first,
        channels=channels,
        taps=taps,
        scale=scale,
    )
