"""Quantise groups of numbers to 4 bits. Each group has a scale and a minimum, which are found by a search."""

from __future__ import annotations

import torch
from torch import Tensor

from models.backends.torch.rounding import GROUP, LARGEST_4_BIT_CODE, TORCH, Rounding
from weights.quantized_matrix import QuantizedMatrix

MAX_GROUPS = 16
"""Largest number of groups whose scales and minimums are multiples of shared units. The compiled kernels have this
limit."""
_MIN_GROUPS = 4
_LARGEST_MULTIPLE = 127
"""Scales and minimums are at most this number of times their unit, because the kernels read them as int8."""
_ROUNDED_TOGETHER = 1 << 18


def fits(width: int) -> bool:
    """Whether a row of `width` inputs can be divided into blocks of at least `_MIN_GROUPS` groups that share units.

    With fewer groups per block, units would take more memory than they save.
    """
    return width % GROUP == 0 and _groups_of_block(width // GROUP) >= _MIN_GROUPS


def quantize_two_levels(x: Tensor, rounding: Rounding = TORCH) -> QuantizedMatrix:
    """Round groups of each row to codes of 4 bits, with a scale and a minimum per group found by a search.

    The search (`Rounding.two_levels`) minimises the squared error, weighted more for large numbers because they belong
    to inputs and outputs that matter. The scales and minimums found are then rounded to integer multiples of two units
    that several groups share, so that each takes one byte.

    x: [rows, width], any float dtype; `fits(width)` must be true.
    Returns codes, scales, minimums and units as a QuantizedMatrix. A group with NaN or infinity has a scale or a
        minimum that is not finite.
    Source: `make_qkx2_quants` and `quantize_row_q4_K_ref` in `ggml-quants.c` of https://github.com/ggml-org/ggml.
    """
    rows, width = x.shape
    groups = width // GROUP
    of_block = _groups_of_block(groups)
    codes = x.new_empty((rows, width), dtype=torch.uint8)
    scales, minimums = x.new_empty((2, rows, groups), dtype=torch.float32)
    units = x.new_empty((rows, groups // of_block, 2), dtype=torch.float32)
    chunk = max(1, _ROUNDED_TOGETHER // width)
    for first in range(0, 0 if x.is_meta else rows, chunk):
        part = slice(first, first + chunk)
        wide = x[part].float().view(-1, groups, GROUP)
        found = torch.stack(rounding.two_levels(wide), 2)
        of_blocks = found.view(-1, groups // of_block, of_block, 2)
        unit = of_blocks.amax(2) / _LARGEST_MULTIPLE
        multiples = (of_blocks / torch.where(unit == 0, 1.0, unit)[:, :, None]).round()
        scale, minimum = (multiples * unit[:, :, None]).view(-1, groups, 2).unbind(2)
        codes[part] = rounding.codes(wide, scale, minimum, 0, LARGEST_4_BIT_CODE).flatten(1)
        scales[part], minimums[part], units[part] = scale, minimum, unit
    return QuantizedMatrix(codes, 4, GROUP, scales, minimums, units=units)


def _groups_of_block(groups: int) -> int:
    """Number of groups that share units: the largest divisor of `groups` that is at most `MAX_GROUPS`.

    groups: number of groups of a row.
    """
    return next(count for count in range(MAX_GROUPS, 0, -1) if groups % count == 0)
