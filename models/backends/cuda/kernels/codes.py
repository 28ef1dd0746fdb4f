"""Conversion between numbers and codes of 4 and 8 bits, by bit operations.

Bit operations work on all devices: compute capability 8.0 has no instructions for fp8 (E4M3), and the instruction that
converts integers would take longer than reading a weight.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def codes_to_float(codes, zero: tl.constexpr):
    """Convert `codes - zero` to float32. codes: int32, from 0 to 255."""
    return (codes | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + zero)


CODE_FACTOR = {"": 1.0, "int8": 1.0, "fp8": 256.0}
"""Factor by which callers multiply results of `code_numbers`, or sums of them, by kind of code."""


@triton.jit
def code_numbers(codes, dtype: tl.constexpr, CODES: tl.constexpr):
    """Convert codes to `dtype`, exactly. A result times `CODE_FACTOR[CODES]` is the number that the code represents.

    codes: int8, or uint8 with the bits of fp8 numbers. If CODES is empty: numbers, which are returned unchanged.
    """
    if CODES == "int8":
        # To 16 bits, Triton converts four codes at a time by bit operations of its own.
        if dtype == tl.float32:
            return codes_to_float((codes.to(tl.int32) & 255) ^ 128, 128)
        else:
            return codes.to(dtype)
    elif CODES == "fp8":
        bits = codes.to(tl.int32)
        # Exponent and mantissa at their places in float16, whose exponents are larger by 8.
        half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.int16).to(tl.float16, bitcast=True)
        return half.to(dtype)
    else:
        return codes


@triton.jit
def fp8_bits(x):
    """Round to the nearest fp8 number (E4M3), ties to even. Returns its bits, int32. x: float32, |x| < 464."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    # The exponents of float32 are larger by 120.
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - 960
    subnormal = round_to_even(tl.abs(x) * 512.0).to(tl.int32)
    return tl.where(tl.abs(x) < 0.015625, subnormal, normal) | ((bits >> 24) & 0x80)


@triton.jit
def round_to_even(x):
    """Round to integers, ties to even. x: float32, |x| < 2 ** 22.

    The kernel must be launched without `enable_fp_fusion`.
    """
    return (x + 12582912.0) - 12582912.0
