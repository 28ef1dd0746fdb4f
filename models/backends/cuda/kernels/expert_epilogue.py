"""Epilogue of the products of experts: bias, and activation or gate."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from models.backends.cuda.kernels.activation import activate
from models.config import Activation


class EpilogueSettings(NamedTuple):
    """How the products of a (token, expert) pair become its result.

    activation: applied to the product, or to the gate if `gated` is true; None for no activation.
    gated: whether the first half of an expert's output features is the gate, and the second half the values (up) that
        it multiplies. The result is then `act(min(gate, limit)) * (clamp(up, -limit, limit) + up_offset)`.
    limit: None for no limit.
    """

    activation: Activation | None = None
    gated: bool = False
    limit: float | None = None
    up_offset: float = 0.0


@triton.jit
def combine(
    total,
    up_total,
    bias,
    column,
    columns,
    is_column,
    up_offset,
    dtype: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    LIMIT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Result of a tile of pairs in `dtype`: [pairs, columns].

    total, up_total: [pairs, columns], float32: products with the gate matrix, and with the up matrix. Without GATED,
        total has the products with the only matrix, and up_total is not read.
    bias: address of the bias of the tile's expert.
    column: [columns]: index of each feature. columns: number of features of the result.
    is_column: [columns]: whether the feature exists.
    """
    if HAS_BIAS:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    if GATED:
        if HAS_BIAS:
            up_total += tl.load(bias + columns + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
        gate, up = total.to(dtype).to(tl.float32), up_total.to(dtype).to(tl.float32)
        if LIMIT > 0.0:
            gate = tl.where(gate > LIMIT, LIMIT, gate)
            up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
        up = (up + up_offset).to(dtype).to(tl.float32)
        total = activate(gate, ACTIVATION).to(dtype).to(tl.float32) * up
    elif ACTIVATION != "":
        total = activate(total.to(dtype).to(tl.float32), ACTIVATION)
    return total.to(dtype)
