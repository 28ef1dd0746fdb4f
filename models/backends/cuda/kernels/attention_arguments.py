"""Arguments and helpers of the decode and tile attention kernels: visible keys, bias and cap of scores, softmax."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class ScoreBias(NamedTuple):
    """A bias that is added to the scores after scale and cap. It depends on the head, and on the key or its distance.

    values: [heads, width], float32, contiguous.
    by_key: whether the index into `values` is the position of the key. Otherwise it is `key - query + width // 2`. The
        index is clamped to the width.
    """

    values: Tensor
    by_key: bool = False


class Scores(NamedTuple):
    """How scores are computed, and which keys a query sees. The same for all rows.

    scale: factor of the scores.
    causal: queries see no later keys.
    window: a query sees its own position and the `window - 1` positions before it. Without `causal`, it also sees the
        `window - 1` positions after it. None for no limit.
    chunk: size of attention chunks, only with `causal`. A query sees only keys of its chunk, which begins at the last
        multiple of `chunk` that is not after the query. None for no limit.
    cap: scaled scores become `cap * tanh(score / cap)`. None for no cap.
    sinks: [heads], float32, an additional score per head, which counts in the sum of the softmax and has no value. None
        for no sinks.
    bias: added to the scores after the cap. None for no bias.
    """

    scale: float
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    cap: float | None = None
    sinks: Tensor | None = None
    bias: ScoreBias | None = None

    def constants(self) -> dict[str, Any]:
        """These settings as the constants of a kernel, by parameter name. 0 and "" stand for None."""
        return {
            "WINDOW": self.window or 0,
            "ATTENTION_CHUNK": self.chunk or 0,
            "CAP": self.cap or 0.0,
            "BIAS": "" if self.bias is None else "key" if self.bias.by_key else "distance",
        }

    def bias_arguments(self, unused: Tensor) -> tuple[Tensor, int]:
        """Values and width of the bias.

        unused: any tensor, which is passed to the kernel in place of a missing bias.
        """
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
    """`maximum`, with 0 in place of -inf, the maximum without visible keys.

    The difference of two infinities would be NaN.
    """
    return tl.where(maximum == float("-inf"), 0.0, maximum)
