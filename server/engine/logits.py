"""Scores over a vocabulary, the largest thing in a step where it is wide: only some rows' are held at a time."""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from models.scoring import Scoring


class Head(Protocol):
    """A model with an output head: see `Transformer.logits`."""

    def logits(self, hidden: Tensor, *, out: Tensor | None = None) -> Tensor: ...


class Logits:
    """From hidden states [n, hidden] to logits [n, width], float32. The next call writes over them.

    width: of the vocabulary. device: of the model. rows: how many to ask for in a call; more would not make the product
    faster. So many are always in the same memory: given back and taken anew at every step it would cost as much as the
    product. More have memory of their own.
    """

    def __init__(self, model: Head, width: int, device: torch.device, rows: int = 64) -> None:
        self.rows = rows
        self._model, self._width, self._device = model, width, device

    @cached_property
    def _memory(self) -> Tensor:
        return torch.empty(self.rows, self._width, device=self._device)

    def __call__(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden, out=self._memory if hidden.shape[0] <= self.rows else None)

    def scoring(self, rows: int, count: int, with_log_sums: bool) -> Scoring | None:
        """What has so many rows' logits made and surveyed with their hidden states, see `Scoring`; it is written over
        like all others. None for no rows, and for more than are held."""
        if not 0 < rows <= self.rows:
            return None
        return Scoring(self._head, self._memory, min(count, self._width), with_log_sums)

    def _head(self, hidden: Tensor, out: Tensor) -> Tensor:
        return self._model.logits(hidden, out=out)
