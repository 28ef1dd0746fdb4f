"""Scores over a vocabulary, the largest thing in a step where it is wide: only some rows' are held at a time."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from models.scoring import Scoring


class Head(Protocol):
    """A model with an output head: see `Transformer.logits`."""

    def logits(self, hidden: Tensor, *, out: Tensor | None = None) -> Tensor: ...


class Logits:
    """From hidden states [n, hidden] to logits [n, vocab], float32. The next call writes over them.

    rows: how many to ask for in a call; more would not make the product faster. So many are always in the same memory:
    given back and taken anew at every step it would cost as much as the product. More have memory of their own.
    """

    def __init__(self, model: Head, rows: int = 64) -> None:
        self.rows = rows
        self._model = model
        self._memory: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        if self._memory is None:
            found = self._model.logits(hidden)
            self._memory = found.new_empty(self.rows, found.shape[1])
            return found
        return self._model.logits(hidden, out=self._memory if hidden.shape[0] <= self.rows else None)

    def scoring(self, rows: int, count: int, with_log_sums: bool) -> Scoring | None:
        """What has so many rows' logits made and surveyed with their hidden states, see `Scoring`; it is written over
        like all others. None for more rows than are held, and before the first call, which tells how wide they are."""
        if self._memory is None or not 0 < rows <= self.rows:
            return None
        return Scoring(self._head, self._memory, min(count, self._memory.shape[1]), with_log_sums)

    def _head(self, hidden: Tensor, out: Tensor) -> Tensor:
        return self._model.logits(hidden, out=out)
