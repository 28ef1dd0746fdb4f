"""Search for the step size of each group of weights: the candidate with the smallest weighted squared error."""

from __future__ import annotations

import torch
from torch import Tensor

from weights.quantized.write_compressed_tensors import Scheme
from weights.quantized_matrix import QuantizedMatrix

_RANGES = {
    4: (1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.78, 0.74),
    6: (1.0, 0.988, 0.976, 0.965, 0.953, 0.93),
    8: (1.0, 0.996, 0.992),
}
"""Candidates for each number of bits: the part of a group's range that the codes cover. Numbers outside become the
largest or the smallest code. With more bits, leaving out large numbers gains less."""
_ROUNDED_TOGETHER = 1 << 20


def find_steps(x: Tensor, importance: Tensor, bits: int) -> Tensor:
    """Search for the step of each group. Weights are represented as `step * code`, with signed codes of `bits` bits.

    x: [groups, numbers], float32. A group with NaN or infinity has a step that is not finite.
    importance: weight of the squared error of each number, [numbers] or [groups, numbers], positive.
    Returns [groups], float32 numbers that float16 represents. A step may be negative.
    """
    largest = x.gather(1, x.abs().argmax(1, keepdim=True))[:, 0]
    best, least = torch.zeros_like(largest), torch.full_like(largest, torch.inf)
    for index, part in enumerate(_RANGES[bits]):
        # The largest number becomes the smallest code, which is further from zero than the largest one.
        step = part * largest / -(1 << (bits - 1))
        codes = codes_of(x, step[:, None], bits)
        weighted = importance * codes
        squares = (weighted * codes).sum(1)
        step = torch.where(squares > 0, (weighted * x).sum(1) / squares, step).half().float()
        error = (importance * (step[:, None] * codes_of(x, step[:, None], bits) - x).square()).sum(1)
        is_better = (error < least) if index else torch.ones_like(error, dtype=torch.bool)
        best, least = torch.where(is_better, step, best), torch.where(is_better, error, least)
    return best


def codes_of(x: Tensor, steps: Tensor, bits: int) -> Tensor:
    """The code of each number: `x / steps`, rounded and limited to signed integers of `bits` bits.

    Returns float32, like x.

    steps: shape that broadcasts with x. A step of zero counts as one. NaN becomes 0.
    """
    middle = 1 << (bits - 1)
    return (x / torch.where(steps == 0, 1.0, steps)).round().nan_to_num().clamp(-middle, middle - 1)


def round_groups(weight: Tensor, scheme: Scheme) -> QuantizedMatrix:
    """Round a matrix in groups, without texts. Errors count more for large numbers and in groups of large numbers.

    weight: [out, in], any float dtype; the group of the scheme divides `in`.
    """
    assert scheme.group is not None
    rows, width = weight.shape
    codes, steps = [], []
    for part in torch.split(weight, max(1, _ROUNDED_TOGETHER // width)):
        groups = part.float().reshape(-1, scheme.group)
        importance = groups.square().mean(1, keepdim=True).sqrt() + groups.abs()
        found = find_steps(groups, importance, scheme.bits)
        codes.append(codes_of(groups, found[:, None], scheme.bits).to(torch.int8))
        steps.append(found)
    return QuantizedMatrix(
        torch.cat(codes).view(rows, width), scheme.bits, scheme.group, torch.cat(steps).view(rows, -1)
    )
