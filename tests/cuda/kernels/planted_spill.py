"""A kernel that needs more registers than a thread has. The check of spills must find it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def spill() -> None:
    numbers = torch.zeros(1 << 17)
    _spilling_kernel[(1,)](numbers, numbers, WIDTH=1 << 17, num_warps=4, enable_fp_fusion=True)


@triton.jit
def _spilling_kernel(x, out, WIDTH: tl.constexpr):
    places = tl.arange(0, WIDTH)
    numbers = tl.load(x + places)
    tl.store(out + places, numbers * tl.rsqrt(tl.sum(numbers * numbers, 0)))
