"""Checkpoints with experts in 4-bit floating point, MXFP4 (Open Compute Project 2023, OCP Microscaling Formats 1.0).

Two tensors have the matrices of all experts of a layer: `<name>_blocks` [experts, out, groups, 16], with two numbers
per byte, the first in the low bits, and `<name>_scales` [experts, out, groups], with the exponent for 32 inputs.

Twice a number of this format is an integer, which kernels can multiply. A matrix is therefore read with a table of
these integers and with halved scales, which is exact. The matrix keeps the name `<name>_blocks`, because an unquantised
checkpoint stores the transposed matrix as `<name>`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from weights.quantized.parts import Description, Parts, combine, layout
from weights.quantized.settings import QuantizationSettings
from weights.quantized_matrix import QuantizedMatrix
from weights.stored import Stored, StoredTensor

_GROUP = 32
_BITS = 4
_BLOCKS, _SCALES = "_blocks", "_scales"
_MAGNITUDES = (0, 1, 2, 3, 4, 6, 8, 12)
DOUBLED = torch.tensor([*_MAGNITUDES, *(-size for size in _MAGNITUDES)], dtype=torch.float32)
"""Twice the value of each 4-bit number (E2M1)."""

_HALF_SCALES = torch.tensor([*(math.ldexp(0.5, exponent - 127) for exponent in range(255)), math.nan])
"""Half of the scale that each exponent byte (E8M0) represents. The last entry is NaN."""


class Mxfp4:
    """Reads the matrices of an MXFP4 checkpoint. Implements `QuantizedFormat`. settings: not used."""

    def __init__(self, settings: QuantizationSettings) -> None:
        self.description, self.unused = "MXFP4, groups of 32", ""

    def matrices(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Stored]:
        return combine(stored, _role, (_BLOCKS,), _describe)


def _role(name: str, tensor: StoredTensor) -> tuple[str, str] | None:
    for ending in (_BLOCKS, _SCALES):
        if name.endswith(ending) and tensor.dtype == torch.uint8:
            return name.removesuffix(ending) + _BLOCKS, ending
    return None


def _describe(parts: Parts) -> Description:
    experts, out, groups, half = parts.shape(_BLOCKS, 4)
    parts.check(_BLOCKS, (torch.uint8,), (experts, out, groups, _GROUP // 2))
    parts.check(_SCALES, (torch.uint8,), (experts, out, groups))

    def read() -> QuantizedMatrix:
        numbers = parts.read(_BLOCKS)
        codes = torch.empty((experts, out, groups, half, 2), dtype=torch.uint8)
        codes[..., 0] = numbers & 15
        codes[..., 1] = numbers >> 4
        scales = _HALF_SCALES[parts.read(_SCALES).int()]
        return QuantizedMatrix(codes.view(experts, out, -1), _BITS, _GROUP, scales, table=DOUBLED)

    return layout((experts, out, groups * _GROUP), _BITS, _GROUP, table=DOUBLED), read
