"""Decode the block types IQ1, IQ2 and IQ3 of GGUF, in which a code stands for a group of four or eight weights.

Decoding gives one code per weight. If 32 inputs share a scale, these are codes of four bits with a table of values; if
16 share one, they are integers, because kernels have no tables for such groups. `gguf_grids` has the codebooks.
Source: `dequantize_row_iq*` in `ggml-quants.c` of https://github.com/ggml-org/ggml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor

from weights.quantized.gguf_blocks import half, two_levels
from weights.quantized.gguf_grids import grid
from weights.quantized_matrix import QuantizedMatrix

_MAGNITUDES = {
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S"), (8, 25, 43)),
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62),
    "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
}
_SIGNS_OF_GROUPS = torch.tensor([index | (index.bit_count() & 1) << 7 for index in range(128)], dtype=torch.uint8)
"""Sign bits of eight weights, by the seven-bit code of a group. The number of negative weights is always even."""
_EIGHTHS = torch.tensor((-9.0, -7.0, -1.0, 1.0, 7.0, 9.0, *[0.0] * 10))
"""Eight times the value of each code that `_eighths` returns."""
_SEVENTHS = torch.tensor((0, 7, 14, 21), dtype=torch.int64)
_ONE_BIT = torch.arange(8, dtype=torch.uint8)


@cache
def _grid(name: str) -> Tensor:
    return grid(name)


@cache
def _table(name: str) -> Tensor:
    """Values of the 16 codes: the magnitudes in ascending order, then zeros, then the negatives of the magnitudes.

    The negative of code i is code 15 - i.
    """
    sizes = _MAGNITUDES[name]
    gap = [0.0] * (16 - 2 * len(sizes))
    return torch.tensor([*map(float, sizes), *gap, *(-float(size) for size in reversed(sizes))])


def _numbers(blocks: Tensor, start: int, end: int, dtype: torch.dtype) -> Tensor:
    """Read the bytes `start` to `end` of each block as unsigned little-endian numbers: [..., blocks, numbers], int64.

    dtype: integer dtype with the width of a number.
    """
    numbers = blocks[..., start:end].contiguous().view(dtype).long()
    return numbers & (1 << 8 * dtype.itemsize) - 1


def _with_signs(name: str, groups: Tensor, signs: Tensor) -> Tensor:
    """Codes of the weights in the order of the inputs: [..., weights], uint8.

    name: block type.
    groups: index of each group of magnitudes in the codebook, [..., groups].
    signs: a byte for each eight weights, [..., weights / 8]. Bits are set for negative weights.
    """
    magnitudes = _grid(name)[groups].flatten(-2)
    negative = (signs[..., None] >> _ONE_BIT & 1).flatten(-2)
    return torch.where(negative == 1, 15 - magnitudes, magnitudes)


def _odd(scales: Tensor) -> Tensor:
    """Convert stored scales to the integer scales that they represent: `2 * stored + 1`."""
    return 2 * scales + 1


def _nibbles(packed: Tensor) -> Tensor:
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def _iq2_xxs(blocks: Tensor) -> QuantizedMatrix:
    words = torch.unflatten(_numbers(blocks, 2, 66, torch.int32), -1, (8, 2))
    groups = (words[..., :1] >> torch.tensor((0, 8, 16, 24)) & 255).flatten(-2)
    signs = _SIGNS_OF_GROUPS[(words[..., 1:] >> _SEVENTHS & 127).flatten(-2)]
    codes = _with_signs("IQ2_XXS", groups, signs)
    return two_levels(codes, 4, 32, half(blocks, 0) / 8, _odd(words[..., 1] >> 28), table=_table("IQ2_XXS"))


def _iq3_xxs(blocks: Tensor) -> QuantizedMatrix:
    words = _numbers(blocks, 66, 98, torch.int32)
    signs = _SIGNS_OF_GROUPS[(words[..., None] >> _SEVENTHS & 127).flatten(-2)]
    codes = _with_signs("IQ3_XXS", blocks[..., 2:66].long(), signs)
    return two_levels(codes, 4, 32, half(blocks, 0) / 4, _odd(words >> 28), table=_table("IQ3_XXS"))


def _iq3_s(blocks: Tensor) -> QuantizedMatrix:
    high = (blocks[..., 66:74, None] >> _ONE_BIT & 1).flatten(-2).long()
    codes = _with_signs("IQ3_S", blocks[..., 2:66].long() | high << 8, blocks[..., 74:106])
    return two_levels(codes, 4, 32, half(blocks, 0), _odd(_nibbles(blocks[..., 106:110])), table=_table("IQ3_S"))


def _iq2_xs(blocks: Tensor) -> QuantizedMatrix:
    words = _numbers(blocks, 2, 66, torch.int16)
    return _integers("IQ2_XS", blocks, words & 511, _SIGNS_OF_GROUPS[words >> 9], blocks[..., 66:74])


def _iq2_s(blocks: Tensor) -> QuantizedMatrix:
    high = (blocks[..., 66:74, None] >> torch.tensor((0, 2, 4, 6), dtype=torch.uint8) & 3).flatten(-2).long()
    groups = blocks[..., 2:34].long() | high << 8
    return _integers("IQ2_S", blocks, groups, blocks[..., 34:66], blocks[..., 74:82])


def _integers(name: str, blocks: Tensor, groups: Tensor, signs: Tensor, scales: Tensor) -> QuantizedMatrix:
    """A matrix of integer codes in which 16 inputs share a scale.

    name: block type. groups: index of each group of magnitudes in the codebook. signs: a byte for each eight weights.
    scales: two scales of four bits per byte.
    """
    values = _table(name).to(torch.int8)[_with_signs(name, groups, signs).int()]
    return two_levels(values, 7, 16, half(blocks, 0) / 8, _odd(_nibbles(scales)))


def _iq1_s(blocks: Tensor) -> QuantizedMatrix:
    words = _numbers(blocks, 34, 50, torch.int16)
    high = (words[..., None] >> torch.tensor((0, 3, 6, 9)) & 7).flatten(-2)
    codes = _eighths("IQ1_S", blocks[..., 2:34].long() | high << 8, (words >> 15).repeat_interleave(4, -1))
    return two_levels(codes, 4, 32, half(blocks, 0) / 8, _odd(words >> 12 & 7), table=_EIGHTHS)


def _iq1_m(blocks: Tensor) -> QuantizedMatrix:
    high, words = _nibbles(blocks[..., 32:48]), _numbers(blocks, 48, 56, torch.int16)
    codes = _eighths("IQ1_M", blocks[..., :32].long() | (high & 7).long() << 8, high >> 3)
    scales = (words[..., None] >> torch.tensor((0, 3, 6, 9)) & 7).flatten(-2)
    # The unit is a float16 in the upper four bits of the four words.
    unit = (words >> 12 << torch.tensor((0, 4, 8, 12))).sum(-1, keepdim=True).to(torch.int16).view(torch.float16)
    return two_levels(_EIGHTHS.to(torch.int8)[codes.int()], 5, 16, unit.float() / 8, _odd(scales))


def _eighths(name: str, groups: Tensor, below: Tensor) -> Tensor:
    """Codes for the values -1, 0 and 1, each plus or minus an eighth, as `_EIGHTHS` lists them: [..., weights], uint8.

    groups: index of each group of eight weights in the codebook. below: 1 for each group in which the eighth is
        subtracted, 0 where it is added.
    """
    return (2 * _grid(name)[groups] + (1 - below.to(torch.uint8))[..., None]).flatten(-2)


CODEBOOK_DECODERS: Mapping[str, Callable[[Tensor], QuantizedMatrix]] = {
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
}
"""Function that decodes blocks of bytes to a matrix, by the name of the block type."""
