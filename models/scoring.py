"""What follows the layers where next tokens are wanted: logits, and what stands out in them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import cast

import torch
from torch import Tensor

from models.backends import interface as ops
from models.backends.cpu import recorded_ops
from models.backends.cpu.recording import Given, Rows


class Scoring:
    """Logits of the tokens that a step wants, and a survey of them, whose Python costs a step more than its sums do.

    So they are the end of the layers' program where the head can be recorded, else they are computed after the layers.

    head: [n, hidden], model dtype, and `out`, where logits are to be -> [n, vocab], float32, there. memory: [n or more,
    vocab], float32, on the device of the head. count, with_log_sums: of the survey, see `ops.survey`.
    logits, seen: what came of it, once the step is computed.
    """

    logits: Tensor
    seen: ops.Survey

    def __init__(
        self, head: Callable[[Tensor, Tensor], Tensor], memory: Tensor, count: int, with_log_sums: bool
    ) -> None:
        self._head, self._memory = head, memory
        self._count, self._with_log_sums = count, with_log_sums

    def __call__(self, hidden: Tensor) -> None:
        """hidden: [n, hidden], model dtype."""
        self.logits = self._head(hidden, self._memory)
        self.seen = ops.survey(self.logits, self._count, self._with_log_sums)

    def record(self, hidden: Tensor) -> None:
        """The same for every step, as the end of a program. Raises NotRecordable."""
        rows, vocab = cast(Rows, hidden), self._memory.shape[1]
        out = Rows(rows.recording, Given("logits"), torch.float32, (vocab,), vocab, rows.count)
        recorded_ops.survey(cast(Rows, self._head(hidden, cast(Tensor, out))))

    def given(self, rows: int) -> dict[Hashable, int]:
        """What such a program is run with, and where it leaves what came of it. rows: how many tokens are wanted."""
        self.logits = self._memory[:rows]
        self.seen = ops.Survey.empty(rows, self._count, self._with_log_sums)
        return {"logits": self.logits.data_ptr(), **ops.survey_given(self.seen)}
