"""Quantise rows of numbers to int8 or fp8, or groups to 4, 6 or 8 bits. Used when weights are loaded or written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from models.backends.torch.rounding import GROUP, TORCH, Rounding
from weights.quantized_matrix import QuantizedMatrix

_MOST_FP8 = 448.0
"""Largest number that fp8 E4M3 can represent."""

ROUNDED_TOGETHER = 1 << 17
"""How many numbers are rounded at a time on a CPU, so that intermediate results stay in the processor's cache."""
_ROUNDED_ON_DEVICES = 1 << 24
"""How many numbers are rounded at a time on other devices, where an operation on many numbers takes as long as on
few."""


def quantize_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row to integers from -127 to 127, with one step size per row.

    x: [rows, width], any float dtype.
    Returns int8 values of the same shape, and the step sizes, [rows], float32. A row with NaN or infinity has a step
    size that is not finite.
    """
    rounded, scales = x.new_empty(x.shape, dtype=torch.int8), x.new_empty(len(x), dtype=torch.float32)
    rows = _rows_together(x)
    for first in range(0, len(x), rows):
        part = slice(first, first + rows)
        rounded[part], scales[part] = _rounded(x[part])
    return rounded, scales


def _rows_together(x: Tensor) -> int:
    return max(1, (ROUNDED_TOGETHER if x.is_cpu else _ROUNDED_ON_DEVICES) // x.shape[1])


def _rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.float()
    scales = wide.abs().amax(1) / 127
    scales = torch.where(scales == 0, 1.0, scales)
    # The kernels multiply by the reciprocal as well. A division would sometimes give a different rounded value.
    return (wide * (1 / scales)[:, None]).round().clamp(-127, 127).nan_to_num().to(torch.int8), scales


def quantize_int8_groups(x: Tensor, rounding: Rounding = TORCH) -> QuantizedMatrix:
    """Round groups of `GROUP` numbers to integers from -127 to 127, with one float16 step size per group.

    x: [rows, width], any float dtype. A group consists of neighbours in a row; the last group may be shorter.
    Returns int8 codes and step sizes as a QuantizedMatrix. A group with NaN or infinity has a step size that is not
        finite.
    """
    return _quantized_groups(x, 8, (-127, 127), lambda wide: _half_at_least(wide.abs().amax(2) / 127), rounding)


def quantize_int6(x: Tensor, rounding: Rounding = TORCH) -> QuantizedMatrix:
    """Round groups of `GROUP` numbers to integers from -32 to 31, with one float16 step size per group.

    x: [rows, width], any float dtype. A group consists of neighbours in a row; the last group may be shorter.
    Returns int8 codes and step sizes as a QuantizedMatrix. A group with NaN or infinity has a step size that is not
        finite.
    """
    return _quantized_groups(x, 6, (-32, 31), lambda wide: rounding.six_bits(wide).half().float(), rounding)


def _quantized_groups(
    x: Tensor, bits: int, codes_range: tuple[int, int], steps_of: Callable[[Tensor], Tensor], rounding: Rounding
) -> QuantizedMatrix:
    """Round groups of each row to integers of `bits` bits.

    codes_range: smallest and largest code.
    steps_of: step sizes, [rows, groups], float32, of numbers [rows, groups, GROUP], float32.
    """
    rows, width = x.shape
    groups = -(-width // GROUP)
    codes = x.new_empty((rows, width), dtype=torch.int8)
    scales = x.new_empty((rows, groups), dtype=torch.float32)
    chunk = _rows_together(x)
    for first in range(0, 0 if x.is_meta else rows, chunk):
        part = slice(first, first + chunk)
        padded = torch.nn.functional.pad(x[part].float(), (0, groups * GROUP - width))
        wide = torch.unflatten(padded, 1, (groups, GROUP))
        scales[part] = steps_of(wide)
        codes[part] = rounding.codes(wide, scales[part], None, *codes_range).flatten(1)[:, :width]
    return QuantizedMatrix(codes, bits, GROUP, scales)


def _half_at_least(x: Tensor) -> Tensor:
    """For each positive number, the smallest float16 number that is at least as large, as float32."""
    half = x.half()
    # The bits of positive numbers, read as integers, have the order of the numbers.
    return torch.where(half.float() < x, (half.view(torch.int16) + 1).view(torch.float16), half).float()


def quantize_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row to fp8 E4M3, with one step size per row, so that its largest number becomes 448.

    x: [rows, width], any float dtype.
    Returns the bytes, uint8, of the same shape, and the step sizes, [rows], float32. A row with NaN or infinity has a
    step size that is not finite.
    """
    rounded, scales = x.new_empty(x.shape, dtype=torch.uint8), x.new_empty(len(x), dtype=torch.float32)
    rows = max(1, ROUNDED_TOGETHER // x.shape[1])
    for first in range(0, len(x), rows):
        part = slice(first, first + rows)
        wide = x[part].float()
        steps = wide.abs().amax(1) / _MOST_FP8
        scales[part] = torch.where(steps == 0, 1.0, steps)
        multiples = (wide / scales[part, None]).clamp_(-_MOST_FP8, _MOST_FP8)
        rounded[part] = multiples.to(torch.float8_e4m3fn).view(torch.uint8)
    return rounded, scales


def quantize_int4(x: Tensor, group: int = 32, with_zero_points: bool = False) -> QuantizedMatrix:
    """Round groups of neighbours in a row to codes of 4 bits, with one float16 step size per group.

    The first step size maps the number of largest magnitude to code -8. With zero points, it maps the range of the
    group, zero included, to codes 0 to 15. A least-squares fit to the codes then improves the step size.

    x: [rows, width], any float dtype.
    group: number of inputs that share a step size. The last group of a row may be shorter.
    with_zero_points: whether each group has a zero point, the code from 0 to 15 that represents zero. Otherwise codes
        are signed, and code 0 represents zero.
    Returns codes and step sizes as a QuantizedMatrix. A group with NaN or infinity has a step size that is not finite.
    """
    rows, width = x.shape
    groups = -(-width // group)
    codes = x.new_empty((rows, width), dtype=torch.uint8 if with_zero_points else torch.int8)
    scales, minimums = x.new_empty((2, rows, groups), dtype=torch.float32)
    chunk = _rows_together(x)
    for first in range(0, 0 if x.is_meta else rows, chunk):
        part = slice(first, first + chunk)
        padded = torch.nn.functional.pad(x[part].float(), (0, groups * group - width))
        wide = torch.unflatten(padded, 1, (groups, group))
        if with_zero_points:
            low, high = wide.amin(2, keepdim=True).clamp(max=0), wide.amax(2, keepdim=True).clamp(min=0)
            steps = (high - low) / 15
            zeros = (-low / torch.where(steps == 0, 1.0, steps)).round().nan_to_num()
        else:
            steps = wide.gather(2, wide.abs().argmax(2, keepdim=True)) / -8
            zeros = torch.full_like(steps, 8)
        rounded = _rounded_to_4_bits(wide, steps, zeros)
        squares = rounded.square().sum(2, keepdim=True)
        steps = torch.where(squares == 0, steps, (wide * rounded).sum(2, keepdim=True) / squares).half().float()
        rounded = _rounded_to_4_bits(wide, steps, zeros)
        stored = rounded + zeros if with_zero_points else rounded
        codes[part], scales[part] = stored.flatten(1)[:, :width].to(codes.dtype), steps[..., 0]
        minimums[part] = (steps * zeros)[..., 0]
    return QuantizedMatrix(codes, 4, group, scales, minimums if with_zero_points else None)


def _rounded_to_4_bits(x: Tensor, steps: Tensor, zeros: Tensor) -> Tensor:
    """Divide x by the steps and round to integers, limited so that `result + zero` is a code from 0 to 15.

    x: [rows, groups, group], float32. steps, zeros: [rows, groups, 1], float32.
    """
    return (x / torch.where(steps == 0, 1.0, steps)).round_().nan_to_num_().clamp_(-zeros, 15 - zeros)


def round_rows(x: Tensor, kind: Literal["int8", "fp8"], terms: int, group: int) -> Tensor:
    """Round the input rows of a matrix product, with one step size per group of inputs. Returns the rounded numbers.

    x: [rows, in], any float dtype. kind: codes of the rounded numbers: integers, or fp8 (E4M3).
    terms: number of int8 codes per number: 1, or 2 for integers of 15 bits.
    group: number of inputs that share a step size.
    Returns float32 numbers like x. A group with NaN or infinity becomes NaN.
    """
    width = x.shape[1]
    wide = torch.nn.functional.pad(x.float(), (0, -width % group)).unflatten(1, (-1, group))  # type: ignore[no-untyped-call]
    finite = wide.isfinite().all(-1, keepdim=True)
    largest = _MOST_FP8 if kind == "fp8" else 127.0 * 128.0 ** (terms - 1)
    steps = torch.where(finite, wide, 0.0).abs().amax(-1, keepdim=True) / largest
    multiples = torch.where(finite, wide, 0.0) * torch.where(steps > 1e-30, 1 / steps, 0.0)
    codes = multiples.to(torch.float8_e4m3fn).float() if kind == "fp8" else multiples.round()
    return (codes * torch.where(finite, steps, torch.nan)).flatten(1)[:, :width]
