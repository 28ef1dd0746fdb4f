"""Arguments that the attention kernels share: which keys a query sees, and what is added to its scores."""

from __future__ import annotations

from typing import NamedTuple

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
