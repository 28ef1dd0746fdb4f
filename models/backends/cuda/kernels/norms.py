"""RMS norm and layer norm over the last dimension, with or without a residual sum. One program per row."""

from __future__ import annotations

from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """RMS norm: normalised in float32, scaled in the dtype of x.

    x: [..., hidden], rows contiguous or strided. weight: [hidden]. One dtype.
    out: like x, contiguous: memory for the result; None for new memory.
    Returns a contiguous tensor like x.
    """
    raise NotImplementedError


def rms_norm_from_one(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """RMS norm with the weight `1 + weight`, computed in float32 to the end. Arguments as for `rms_norm`."""
    raise NotImplementedError


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor | None = None) -> Tensor:
    """Layer norm, computed in float32. bias: [hidden] or None; the other arguments as for `rms_norm`."""
    raise NotImplementedError


def add_rms_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Residual sum and its RMS norm: `(x + y, rms_norm(x + y))`. x, y: [tokens, hidden]; the sum has their dtype."""
    raise NotImplementedError


def add_rms_norm_from_one(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Residual sum and its norm, as `add_rms_norm` with `rms_norm_from_one`."""
    raise NotImplementedError


def add_layer_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Residual sum and its layer norm: `(x + y, layer_norm(x + y))`. x, y: [tokens, hidden]."""
    raise NotImplementedError
