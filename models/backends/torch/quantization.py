"""Quantise rows of numbers to int8. Used when weights are loaded."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDED_TOGETHER = 1 << 17
"""Numbers rounded at a time, so that intermediate results stay in the processor's cache."""


def quantize_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row to integers from -127 to 127, with one step size per row.

    x: [rows, width], any float dtype.
    Returns int8 values of the same shape, and the step sizes, [rows], float32. A row with NaN or infinity has a step
    size that is not finite.
    """
    rounded, scales = x.new_empty(x.shape, dtype=torch.int8), x.new_empty(len(x), dtype=torch.float32)
    rows = max(1, ROUNDED_TOGETHER // x.shape[1])
    for first in range(0, len(x), rows):
        part = slice(first, first + rows)
        rounded[part], scales[part] = _rounded(x[part])
    return rounded, scales


def _rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.float()
    scales = wide.abs().amax(1) / 127
    scales = torch.where(scales == 0, 1.0, scales)
    # The kernels multiply by the reciprocal as well. A division would sometimes give a different rounded value.
    return (wide * (1 / scales)[:, None]).round().clamp(-127, 127).nan_to_num().to(torch.int8), scales
