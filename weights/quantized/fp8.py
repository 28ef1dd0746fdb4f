"""Checkpoints with weights in 8-bit floating point, E4M3 (Micikevicius et al. 2022, arXiv:2209.05433).

A matrix is `weight` [out, in] with `weight_scale_inv` or `weight_scale`: one scale for the matrix, one per output
feature, or one per block of both dimensions. Despite `inv` in the name, a weight is its number times the scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from weights.quantized.parts import Description, Parts, combine, layout, scales_of_blocks
from weights.quantized.settings import QuantizationSettings
from weights.quantized_matrix import QuantizedMatrix
from weights.stored import Stored, StoredTensor

DTYPE = torch.float8_e4m3fn
TABLE = torch.arange(256, dtype=torch.uint8).view(DTYPE).float()
"""Value of each byte as an E4M3 number. Two of them are NaN."""
_SCALES = ("_scale_inv", "_scale")
_UNUSED = (".input_scale", ".activation_scale", ".input_scale_ub")


class Fp8:
    """Reads the matrices of an fp8 checkpoint. Implements `QuantizedFormat`.

    settings: the object `quantization_config`. Raises WeightsError for an unsupported setting.
    """

    def __init__(self, settings: QuantizationSettings) -> None:
        self._block = settings.pair("weight_block_size", (128, 128))
        settings.refuse_unless("fmt", "e4m3")
        settings.refuse_unless("expert_dtype", "fp8")
        scheme = settings.choice("activation_scheme", ("dynamic", "static"), "dynamic")
        self.description = "fp8 E4M3"
        self.unused = "static scales of activations" if scheme == "static" else ""

    def matrices(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Stored]:
        return combine(stored, _role, ("",), self._describe, _UNUSED)

    def _describe(self, parts: Parts) -> Description:
        ending = next((ending for ending in _SCALES if ending in parts), _SCALES[0])
        return fp8_matrix(parts, "", ending, self._block)


def fp8_matrix(parts: Parts, codes: str, scale: str, block: Sequence[int] | None) -> Description:
    """Describe a matrix of fp8 numbers, or one matrix per expert.

    codes, scale: endings of the names of the tensors with the numbers and the scales.
    block: numbers of output features and of inputs that share a scale, if the scales are per block; or None.
    Raises ValueError for tensors of another shape or dtype.
    """
    shape = parts.shape(codes)
    if len(shape) not in (2, 3):
        raise ValueError(f"shape {list(shape)} is no matrix")
    rows, group = block_of(parts, scale, shape, block)

    def read() -> QuantizedMatrix:
        bytes_ = parts.read(codes).view(torch.uint8)
        return QuantizedMatrix(bytes_, 8, group, scales_of_blocks(parts.read(scale), shape, rows), table=TABLE)

    return layout(shape, 8, group, table=TABLE), read


def block_of(parts: Parts, scale: str, shape: Sequence[int], block: Sequence[int] | None) -> tuple[int, int]:
    """Numbers of output features and of inputs that share a scale, from the shape of the scales.

    Scales may be one for the matrix, one per output feature, or one per block.

    scale: ending of the scales' tensor name.
    shape: shape of the matrix, [..., out, in].
    block: numbers of output features and of inputs in a block, or None if scales per block are not allowed.
    Raises ValueError for scales of another shape.
    """
    *experts, out, width = shape
    whole: list[tuple[int, ...]] = [(*experts, 1, 1), (*experts, 1)] if experts else [(1, 1), (1,), ()]
    rows = [(*experts, out, 1), (*experts, out)]
    if block is not None:
        blocks = (*experts, -(-out // block[0]), -(-width // block[1]))
        parts.check_floats(scale, blocks, *rows, *whole)
        if parts.shape(scale) == blocks:
            return block[0], block[1]
    parts.check_floats(scale, *rows, *whole)
    return (1 if parts.shape(scale) in rows else out), width


def _role(name: str, tensor: StoredTensor) -> tuple[str, str] | None:
    for ending in _SCALES:
        if name.endswith(f"weight{ending}") or name.endswith(f"proj{ending}"):
            return name.removesuffix(ending), ending
    return (name, "") if tensor.dtype == DTYPE else None
