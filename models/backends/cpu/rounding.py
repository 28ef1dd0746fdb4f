"""Rounding of weights in groups by compiled kernels, which take about a hundredth of the time of torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from models.backends.cpu import library
from models.backends.torch.rounding import GROUP, TORCH, Rounding


class KernelRounding(Rounding):
    """The functions of `Rounding` by compiled kernels, for float32 numbers in the memory of the CPU."""

    def two_levels(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scales, minimums = x.new_empty(x.shape[:2]), x.new_empty(x.shape[:2])
        x = x.contiguous()
        library.loaded().triptych_search_two_levels(x.data_ptr(), _count(x), scales.data_ptr(), minimums.data_ptr())
        return scales, minimums

    def six_bits(self, x: Tensor) -> Tensor:
        scales, x = x.new_empty(x.shape[:2]), x.contiguous()
        library.loaded().triptych_search_six_bits(x.data_ptr(), _count(x), scales.data_ptr())
        return scales

    def codes(self, x: Tensor, scales: Tensor, minimums: Tensor | None, least: int, most: int) -> Tensor:
        codes, x, scales = torch.empty(x.shape, dtype=torch.int8), x.contiguous(), scales.contiguous()
        if minimums is not None:
            minimums = minimums.contiguous()
        library.loaded().triptych_round_groups(
            x.data_ptr(),
            _count(x),
            scales.data_ptr(),
            None if minimums is None else minimums.data_ptr(),
            least,
            most,
            codes.data_ptr(),
        )
        return codes


def rounding_of(weight: Tensor) -> Rounding:
    """The rounding functions for a weight.

    They are compiled kernels for a weight on the CPU, if the kernels were built; else torch operations.
    """
    return KernelRounding() if weight.is_cpu and library.load() is not None else TORCH


def _count(x: Tensor) -> int:
    assert x.dtype == torch.float32 and x.shape[2] == GROUP
    return x.shape[0] * x.shape[1]
