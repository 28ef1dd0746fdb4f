"""Rounds the rows of products with weights of 8 or 4 bits, so that instructions for 8-bit matrices can compute them.

Each group of 128 inputs in a row has one scale. For int8 and 4-bit weights, a number becomes one code of 8 bits, or two
codes that have 15 bits together. For fp8 weights it becomes an fp8 number; products of fp8 numbers need compute
capability 8.9.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.codes import fp8_bits, round_to_even
from models.backends.cuda.kernels.launch import kernel

GROUP = 128
"""Number of inputs of a row that share a scale."""


class RoundedRows(NamedTuple):
    """Rows of a product: `x[r, i] = scales[r, i // GROUP] * (128 * codes[0, r, i] + codes[1, r, i])`.

    With one term it is `scales * codes[0]`.

    codes: [terms, rows, in], int8; or uint8 with the bits of fp8 numbers, which have one term.
    scales: [rows, groups], float32; NaN for a group with a number that is not finite.
    """

    codes: Tensor
    scales: Tensor


LARGEST = {("int8", 1): 127.0, ("int8", 2): 16256.0, ("fp8", 1): 448.0}
"""Largest multiple of a scale, by kind and number of terms. Two terms: 127 * 128."""


def round_rows(x: Tensor, kind: str, terms: int = 1) -> RoundedRows:
    """Round the input rows of a product, with one scale for each group of `GROUP` inputs.

    x: [rows, in], float16, bfloat16 or float32, the last dimension contiguous.
    kind: "int8" or "fp8". terms: number of codes per number.
    """
    rows, inputs = x.shape
    groups = -(-inputs // GROUP)
    codes = torch.empty(terms, rows, inputs, dtype=torch.int8 if kind == "int8" else torch.uint8, device=x.device)
    scales = torch.empty(rows, groups, device=x.device)
    if rows:
        _round_kernel[rows, -(-groups // _GROUPS)](
            x,
            codes,
            scales,
            x.stride(0),
            inputs,
            groups,
            KIND=kind,
            TERMS=terms,
            LARGEST=LARGEST[kind, terms],
            GROUPS=_GROUPS,
            GROUP=GROUP,
            num_warps=4,
            # `round_to_even` adds a large number to a product. If the compiler fused both operations, the product would
            # not be rounded to float32 first, and some codes would differ from those of the reference.
            enable_fp_fusion=False,
        )
    return RoundedRows(codes, scales)


_GROUPS = 8
"""Number of groups that a program rounds."""


@kernel()
def _round_kernel(
    x,
    codes,
    scales,
    x_row,
    inputs,
    groups,
    KIND: tl.constexpr,
    TERMS: tl.constexpr,
    LARGEST: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    place = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    is_input = place < inputs
    wide = tl.load(x + row * x_row + place, mask=is_input, other=0.0).to(tl.float32)
    is_finite = tl.sum((wide - wide != 0.0).to(tl.int32), 1) == 0
    wide = tl.where(is_finite[:, None], wide, 0.0)
    scale = tl.div_rn(tl.max(tl.abs(wide), 1), LARGEST)
    inverse = tl.where(scale > 1e-30, tl.div_rn(1.0, tl.where(scale > 1e-30, scale, 1.0)), 0.0)
    multiples = wide * inverse[:, None]
    tl.store(scales + row * groups + group, tl.where(is_finite, scale, float("nan")), mask=group < groups)
    target = codes + row * inputs + place
    dtype = codes.dtype.element_ty
    if KIND == "fp8":
        tl.store(target, fp8_bits(multiples).to(dtype), mask=is_input)
    else:
        number = round_to_even(multiples)
        if TERMS == 2:
            high = round_to_even(number * 0.0078125)
            rest = target + tl.num_programs(0).to(tl.int64) * inputs
            tl.store(rest, (number - high * 128.0).to(tl.int32).to(dtype), mask=is_input)
            number = high
        tl.store(target, number.to(tl.int32).to(dtype), mask=is_input)
