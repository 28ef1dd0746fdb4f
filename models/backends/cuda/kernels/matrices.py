"""Weight matrices of 8 and 4 bits, in the layouts that the kernels read."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

HALF_RUN = 32
"""Number of inputs of half a run. A run has 64 inputs, and each byte holds one code of either half."""


class ByteMatrix(NamedTuple):
    """`weight[o, i] = scales[o, i // group] * number(codes[o, i])`.

    codes: [out, in], contiguous: int8, or uint8 with the bits of fp8 numbers (E4M3).
    scales: [out, groups], contiguous, float16 or float32.
    group: number of inputs that share a scale: a multiple of 32, or at least `in`. The last group of a row may be
        shorter.
    The matrix of all experts of a layer has a further first dimension in codes and scales.
    """

    codes: Tensor
    scales: Tensor
    group: int

    @property
    def kind(self) -> str:
        """Kind of the codes, as `code_numbers` has it: "int8" or "fp8"."""
        return "int8" if self.codes.dtype == torch.int8 else "fp8"


class Int4Matrix(NamedTuple):
    """`weight[o, i] = scales[o, i // group] * (code[o, i] - 8) - minimums[o, i // group]`, with codes from 0 to 15.

    codes: [out, in / 2], uint8, two codes per byte as `pack_int4` packs them.
    scales: [out, groups], float16 or float32. minimums: likewise, or None for zeros.
    group: number of inputs that share a scale: a multiple of 32, or at least `in`. The last group of a row may be
        shorter.
    The matrix of all experts of a layer has a further first dimension in codes, scales and minimums.
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
