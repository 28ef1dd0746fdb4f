"""Scores over a vocabulary, the largest thing in a step where it is wide: only some rows' are held at a time."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


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
        return self._model.logits(hidden, out=self._memory if len(hidden) <= self.rows else None)
