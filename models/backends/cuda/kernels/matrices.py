"""Weight matrices of 8 and 4 bits, in the layouts that the kernels read."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

HALF_RUN = 32
"""Number of inputs of half a run. A run has 64 inputs, and each byte holds one code of either half."""


class Int8Matrix(NamedTuple):
    """`weight[o, i] = scales[o] * codes[o, i]`. codes: [out, in], int8, contiguous. scales: [out], float32."""

    codes: Tensor
    scales: Tensor


class Int4Matrix(NamedTuple):
    """`weight[o, i] = scales[o, i // group] * (code[o, i] - 8) - minimums[o, i // group]`, with codes from 0 to 15.

    codes: [out, in / 2], uint8, two codes per byte as `pack_int4` packs them.
    scales: [out, groups], float16 or float32. minimums: likewise, or None for zeros.
    group: number of inputs that share a scale: a multiple of 32, or at least `in`. The last group of a row may be
        shorter.
    """

    codes: Tensor
    scales: Tensor
    minimums: Tensor | None
    group: int


def pack_int4(codes: Tensor) -> Tensor:
    """Pack codes from 0 to 15: [out, in], uint8 -> [out, in / 2], uint8. `in` is a multiple of 64.

    In each run of 64 inputs, byte i holds the code of input i in its lower four bits, and the code of input i + 32 in
    its upper four bits.
    """
    runs = codes.unflatten(1, (-1, 2, HALF_RUN))
    packed: Tensor = (runs[:, :, 0] | runs[:, :, 1] << 4).flatten(1)
    return packed
