"""How strongly the words and punctuation marks of a translation attend to a part of the source text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server.text.markup.placed_tags import Span

_MIN_ATTENTION = 0.05
"""Least attention of a translated word on the words of the source, for the word to be aligned with them.

A word with less has nearly all of its attention on special tokens.
"""


@dataclass(frozen=True)
class TokenAlignment:
    """Attention weights from each token of a translation to each token of its source.

    source, target: (start, end) of each token in the source text or the translation, as character indices. Tokens
        without characters have equal indices. Those of the translation are in order.
    weights: [target tokens, source tokens], float32.
    """

    source: Sequence[Span]
    target: Sequence[Span]
    weights: npt.NDArray[np.float32]


class UnitAttention:
    """The attention of each unit of a translation on its source. A unit is a word or a punctuation mark.

    The attention of a unit is the sum over its tokens. Source tokens without characters, such as special tokens, are
    left out.

    units: (start, end) of each unit in the translation, as character indices.
    """

    def __init__(self, units: Sequence[Span], alignment: TokenAlignment) -> None:
        self._source = alignment.source
        self._weights = alignment.weights.astype(np.float64)
        starts, ends = [start for start, _ in alignment.target], [end for _, end in alignment.target]
        self._tokens = [slice(bisect_right(ends, start), bisect_left(starts, end)) for start, end in units]
        self._totals = self._sums([float(end > start) for start, end in alignment.source])

    def shares(self, start: int, end: int) -> list[float]:
        """For each unit, the share (0 to 1) of its attention that is on the characters [start, end) of the source.

        All zeros for units with too little attention on the source.
        """
        inside = [
            (min(end, last) - max(start, first)) / (last - first) if max(start, first) < min(end, last) else 0.0
            for first, last in self._source
        ]
        return [
            own / total if total >= _MIN_ATTENTION else 0.0
            for own, total in zip(self._sums(inside), self._totals, strict=True)
        ]

    def _sums(self, factors: Sequence[float]) -> list[float]:
        """For each unit, the sum of its attention on the source tokens, each multiplied by its factor."""
        by_token = (self._weights @ np.array(factors)).tolist()
        return [sum(by_token[tokens]) for tokens in self._tokens]
