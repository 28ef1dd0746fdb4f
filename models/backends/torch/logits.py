"""What is asked of logits to choose tokens, in plain torch: the reference, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Survey(NamedTuple):
    """What stands out in each row of logits.

    values, ids: [rows, count], float32 and int64: the largest logits, falling; of equal ones the lower id comes first.
    log_sums: [rows], float32: the log of the sum of exp(logit - largest logit), or None where it was not asked for;
    no number in a row of which nothing is above -inf.
    finite: [rows], bool: whether all logits of the row are.
    """

    values: Tensor
    ids: Tensor
    log_sums: Tensor | None
    finite: Tensor

    @classmethod
    def empty(cls, rows: int, count: int, with_log_sums: bool) -> Survey:
        """Memory for one, on a CPU."""
        ids, log_sums = torch.empty(rows, count, dtype=torch.int64), torch.empty(rows) if with_log_sums else None
        return cls(torch.empty(rows, count), ids, log_sums, torch.empty(rows, dtype=torch.bool))

    def rows(self, indices: Sequence[int]) -> Survey:
        """Of some of the rows."""
        if len(indices) == self.ids.shape[0] and list(indices) == list(range(len(indices))):
            return self
        where = torch.tensor(indices, device=self.ids.device)
        sums = None if self.log_sums is None else self.log_sums[where]
        return Survey(self.values[where], self.ids[where], sums, self.finite[where])

    @property
    def log_probs(self) -> Tensor:
        """[rows, count], float32: log-probabilities of the largest."""
        return self.log_probs_of(self.values)

    def log_probs_of(self, logits: Tensor) -> Tensor:
        """Log-probabilities of some logits of each row. [rows, n], float32 -> the same."""
        assert self.log_sums is not None
        return logits - self.values[:, :1] - self.log_sums[:, None]

    def to_log_probs(self, logits: Tensor) -> Tensor:
        """The same for whole rows, overwritten. [rows, vocab], float32."""
        assert self.log_sums is not None
        return logits.sub_(self.values[:, :1]).sub_(self.log_sums[:, None])

    def log_prob(self, row: int, logit: Tensor) -> Tensor:
        """The same for one logit of a row: a float32 without dimensions."""
        assert self.log_sums is not None
        return logit - self.values[row, 0] - self.log_sums[row]


def survey(logits: Tensor, count: int, with_log_sums: bool) -> Survey:
    """Look at each row by itself. logits: [rows, vocab], float32; 1 <= count <= vocab."""
    ids = logits.argmax(dim=-1, keepdim=True) if count == 1 else _keys(logits).topk(count, dim=-1).indices
    values = logits.gather(1, ids).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    log_sums = (logits - values[:, :1]).double().logsumexp(dim=-1).float() if with_log_sums else None
    return Survey(values, ids, log_sums, torch.isfinite(logits).all(dim=-1))


def _keys(logits: Tensor) -> Tensor:
    """[rows, vocab], int64, all different: how large each logit is and, behind that, how low its id. NaN is lowest."""
    # Zero has two signs and one place.
    bits = (logits + 0.0).view(torch.int32).long()
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).masked_fill(logits.isnan(), 1 - (1 << 31))
    return rising * (1 << 32) - torch.arange(logits.shape[1], device=logits.device)
