"""Random choice of a token per row: filters by top_k, top_p and min_p, and the draw. One program per row."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from models.backends.torch.sampling import Drawn


class FilterColumns(NamedTuple):
    """Filters of the rows (`models.backends.torch.sampling.Filters`) as tensors, [rows] each.

    temperatures: float32, positive. top_ks: int32; 0 keeps all. top_ps: float64; 1 keeps all. log_min_ps: float32, log
    of min_p; -inf keeps all. typical_p is not here: rows with typical_p below 1 need the torch reference.
    """

    temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    log_min_ps: Tensor


def draw(logits: Tensor, filters: FilterColumns, uniforms: Tensor) -> Drawn:
    """Draw a token of each row from its filtered distribution. A row of -inf alone gives an arbitrary token.

    logits: [rows, vocab], float32, not modified; the last dimension contiguous.
    uniforms: [rows], float64, in [0, 1): share of the distribution before the drawn token.
    """
    raise NotImplementedError
