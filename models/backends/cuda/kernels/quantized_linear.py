"""Products with weights of 8 or 4 bits, which are dequantised to the model's dtype in the tile."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Int8Weight(NamedTuple):
    """`weight[o, i] = scales[o] * codes[o, i]`. codes: [out, in], int8, contiguous. scales: [out], float32."""

    codes: Tensor
    scales: Tensor


class Int4Weight(NamedTuple):
    """`weight[o, i] = scales[o, i // group] * (code[o, i] - 8) - minimums[o, i // group]`, with codes from 0 to 15.

    codes: [out, in / 2], uint8, see `pack_int4`. scales: [out, in / group], float16. minimums: likewise, or None.
    group: inputs that share a scale, a multiple of 32.
    """

    codes: Tensor
    scales: Tensor
    minimums: Tensor | None
    group: int


def pack_int4(codes: Tensor) -> Tensor:
    """Pack codes from 0 to 15: [out, in], uint8 -> [out, in / 2], uint8. `in` is a multiple of 64.

    In each run of 64 inputs, byte i holds input i in its lower half and input i + 32 in its upper half.
    """
    raise NotImplementedError


def int8_linear(x: Tensor, weight: Int8Weight, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """`x W^T + b`. x: [rows, in], float16, bfloat16 or float32, rows contiguous. bias: [out], dtype of x, or None.

    out: [rows, out], contiguous: memory for the result; None for new memory.
    Returns [rows, out], dtype of x.
    """
    raise NotImplementedError


def int4_linear(x: Tensor, weight: Int4Weight, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """`x W^T + b`, arguments as for `int8_linear`."""
    raise NotImplementedError
