"""A kernel that computes `act(gate) * up`, the middle of a gated feed-forward network."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.launch import kernel
from models.config import Activation


def gated_activation(gate: Tensor, up: Tensor, activation: Activation, out: Tensor | None = None) -> Tensor:
    """`act(gate) * up`. The activation is computed in float32, and rounded to the model dtype before the product.

    gate, up: [rows, width], model dtype; the last dimension contiguous, rows with any stride. They may be the two
        halves of one merged product.
    out: [rows, width], contiguous: memory for the result; None for new memory.
    Returns [rows, width].
    """
    rows, width = gate.shape
    if out is None:
        out = gate.new_empty(rows, width)
    if rows:
        _gated_kernel[rows, -(-width // _TILE)](
            gate,
            up,
            out,
            gate.stride(0),
            up.stride(0),
            width,
            ACTIVATION=activation,
            TILE=_TILE,
            num_warps=4,
            enable_fp_fusion=True,
        )
    return out


_TILE = 1024
"""Number of elements of a row that one program computes."""


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """Apply an activation of `models.backends.torch.activations`. x: float32. ACTIVATION: its name."""
    if ACTIVATION == "silu":
        return x * tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        # 0.5 * (1 + tanh(y)) is sigmoid(2 * y).
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif ACTIVATION == "gelu_quick":
        return x * tl.sigmoid(1.702 * x)
    elif ACTIVATION == "relu":
        return tl.where(x < 0, 0.0, x)
    elif ACTIVATION == "relu_squared":
        return tl.where(x < 0, 0.0, x * x)
    elif ACTIVATION == "sigmoid":
        return tl.sigmoid(x)
    else:
        tl.static_assert(ACTIVATION == "tanh", "unknown activation")
        return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@kernel()
def _gated_kernel(gate, up, out, gate_row, up_row, width, ACTIVATION: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < width
    dtype = out.dtype.element_ty
    active = activate(tl.load(gate + row * gate_row + columns, mask=inside, other=0.0).to(tl.float32), ACTIVATION)
    factor = tl.load(up + row * up_row + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + columns, (active.to(dtype).to(tl.float32) * factor).to(dtype), mask=inside)
