"""A fake device that computes nothing: its captured steps have constant results, so that only Python takes time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from models.backends.logits import DecoderOutput, LogitsTopK


class StillEvent:
    """An event of the fake device, which never has to be waited for."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


class StillDevice:
    """A fake device whose graphs do nothing. Implements `GraphRunner`. result: the result of all captured steps."""

    def __init__(self, result: Any) -> None:
        self._result = result

    @classmethod
    def choosing(cls, token: int, rows: int, vocab_size: int) -> StillDevice:
        """A device on which each of `rows` rows of a decode step chooses one token."""
        top_k = LogitsTopK(torch.ones(rows, 1), torch.full((rows, 1), token), None, torch.ones(rows, dtype=torch.bool))
        return cls(DecoderOutput(torch.zeros(rows, 1), torch.zeros(rows, vocab_size), top_k))

    def capture(self, run: Callable[[], Any]) -> tuple[Callable[[], object], Any]:
        return lambda: None, self._result

    def pinned(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int64)

    def event(self) -> StillEvent:
        return StillEvent()
