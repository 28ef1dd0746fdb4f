"""RMS norm, layer norm and scaling to unit length over the last dimension, the norms also after a residual sum.

One program computes a row.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.launch import kernel, power_of_two, warps


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """RMS norm: normalised in float32, scaled in the dtype of x.

    x: [..., hidden], the last dimension contiguous. weight: [hidden], dtype of x.
    out: like x, contiguous: memory for the result; None for new memory.
    Returns a contiguous tensor like x.
    """
    return _norm(x, None, weight, None, eps, "rms", out)[1]


def rms_norm_from_one(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """RMS norm with the weight `1 + weight`, normalised and scaled in float32.

    x: [..., hidden], the last dimension contiguous. weight: [hidden], dtype of x.
    out: like x, contiguous: memory for the result; None for new memory.
    Returns a contiguous tensor like x.
    """
    return _norm(x, None, weight, None, eps, "rms_from_one", out)[1]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor | None = None) -> Tensor:
    """Layer norm, computed in float32.

    x: [..., hidden], the last dimension contiguous. weight: [hidden], dtype of x. bias: [hidden] or None.
    out: like x, contiguous: memory for the result; None for new memory.
    Returns a contiguous tensor like x.
    """
    return _norm(x, None, weight, bias, eps, "layer", out)[1]


def unit_rows(x: Tensor) -> Tensor:
    """Scale each row to unit length, in float32; a row of zeros stays zero. x: [rows, width] -> [rows, width]."""
    return _norm(x, None, x, None, 0.0, "unit")[1]


def add_rms_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Residual sum and its RMS norm: `(x + y, rms_norm(x + y))`. x, y: [tokens, hidden]; the sum has their dtype."""
    return _norm(x, y, weight, None, eps, "rms")


def add_rms_norm_from_one(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Residual sum and its norm: `(x + y, rms_norm_from_one(x + y))`. x, y: [tokens, hidden], of the same dtype."""
    return _norm(x, y, weight, None, eps, "rms_from_one")


def add_layer_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Residual sum and its layer norm: `(x + y, layer_norm(x + y))`. x, y: [tokens, hidden]."""
    return _norm(x, y, weight, bias, eps, "layer")


def _norm(
    x: Tensor,
    y: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    kind: str,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The residual sum `x + y` (x itself if y is None), and its norm.

    kind: "rms", "rms_from_one", "layer" or "unit", which reads no weight.
    """
    width = x.shape[-1]
    rows = x.reshape(-1, width)
    others = rows if y is None else y.reshape(-1, width)
    if out is None:
        out = x.new_empty(x.shape)
    total = x if y is None else x.new_empty(x.shape)
    if rows.shape[0]:
        _norm_kernel[(rows.shape[0],)](
            rows,
            others,
            weight,
            weight if bias is None else bias,
            total,
            out,
            rows.stride(0),
            others.stride(0),
            eps,
            KIND=kind,
            HAS_SUM=y is not None,
            HAS_BIAS=bias is not None,
            WIDTH=width,
            TILE=power_of_two(width),
            num_warps=warps(width),
            enable_fp_fusion=True,
        )
    return total, out


@kernel()
def _norm_kernel(
    x,
    y,
    weight,
    bias,
    total,
    out,
    x_row,
    y_row,
    eps,
    KIND: tl.constexpr,
    HAS_SUM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, TILE)
    inside = columns < WIDTH
    dtype = out.dtype.element_ty
    wide = tl.load(x + row * x_row + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_SUM:
        summand = tl.load(y + row * y_row + columns, mask=inside, other=0.0).to(tl.float32)
        wide = (wide + summand).to(dtype)
        tl.store(total + row * WIDTH + columns, wide, mask=inside)
        wide = wide.to(tl.float32)
    if KIND == "unit":
        result = wide / tl.maximum(tl.sqrt(tl.sum(wide * wide, 0)), 1e-12)
    else:
        factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
        if KIND == "layer":
            wide = tl.where(inside, wide - tl.sum(wide, 0) / WIDTH, 0.0)
        normalized = wide * tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + eps)
        if KIND == "rms":
            normalized = normalized.to(dtype).to(tl.float32)
        if KIND == "rms_from_one":
            factor += 1.0
        result = normalized * factor
        if HAS_BIAS:
            result += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + columns, result.to(dtype), mask=inside)
