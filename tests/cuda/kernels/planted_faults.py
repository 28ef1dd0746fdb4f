"""Launches with faults that the checks of compiled kernels must find."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from models.backends.cuda.kernels import norms


def spill() -> None:
    """A kernel that needs more registers than a thread has."""
    numbers = torch.zeros(1 << 15)
    _spilling_kernel[(1,)](numbers, numbers, WIDTH=1 << 15, num_warps=4, enable_fp_fusion=True)


@triton.jit
def _spilling_kernel(x, out, WIDTH: tl.constexpr):
    places = tl.arange(0, WIDTH)
    numbers = tl.load(x + places)
    tl.store(out + places, numbers * tl.rsqrt(tl.sum(numbers * numbers, 0)))


def load_narrowly() -> None:
    """A norm of rows that begin at odd addresses."""
    x = torch.zeros(4097, dtype=torch.bfloat16)[1:]
    norms.rms_norm(x[None], x, 1e-5)
