"""What the attention kernels share: which keys a query sees, what is added to its scores, and the softmax."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class ScoreBias(NamedTuple):
    """A number per head that is added to scaled, capped scores.

    values: [heads, width], float32, contiguous. By distance: index `key - query + width // 2`, clamped to the width. By
        key: the position of the key, clamped to the width.
    by_key: which of the two.
    """

    values: Tensor
    by_key: bool = False


class Scores(NamedTuple):
    """How scores are computed and which keys a query sees, equal for all rows.

    scale: factor of the scores.
    causal: queries see no later keys.
    window: a query sees its own position and the `window - 1` before it; without `causal` also the `window - 1` after
        it. None: all.
    chunk: with `causal`: a query sees no keys before the last multiple of `chunk` up to its own position. None: all.
    cap: scaled scores become `cap * tanh(score / cap)`. None for no cap.
    sinks: [heads], float32, a score per head that takes part in the softmax and has no value; None for none.
    bias: added to the scores after the cap; None for none.
    """

    scale: float
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    cap: float | None = None
    sinks: Tensor | None = None
    bias: ScoreBias | None = None

    def constants(self) -> dict[str, Any]:
        """Constants of a kernel; 0 stands for none."""
        return {
            "WINDOW": self.window or 0,
            "ATTENTION_CHUNK": self.chunk or 0,
            "CAP": self.cap or 0.0,
            "BIAS": "" if self.bias is None else "key" if self.bias.by_key else "distance",
        }

    def bias_arguments(self, unused: Tensor) -> tuple[Tensor, int]:
        """Values and width of the bias. unused: stands for the values where there are none."""
        return (unused, 0) if self.bias is None else (self.bias.values, self.bias.values.shape[-1])


@triton.jit
def capped(scores, CAP: tl.constexpr):
    """`CAP * tanh(scores / CAP)`; the scores themselves where CAP is 0."""
    if CAP == 0.0:
        return scores
    else:
        return CAP * (2.0 * tl.sigmoid(2.0 * (scores / CAP)) - 1.0)


@triton.jit
def finite_maximum(maximum):
    """A maximum that can be subtracted: 0 where nothing is visible, because -inf - -inf is NaN."""
    return tl.where(maximum == float("-inf"), 0.0, maximum)
