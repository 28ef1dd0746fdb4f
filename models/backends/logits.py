"""The request for the logits of a decoder step, and the results: logits and their top k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class LogitsRequest(NamedTuple):
    """Asks a step for the logits of its output rows and their top k, in addition to the hidden states.

    top_k: number of largest logits per row, at least 1; limited to the vocabulary.
    with_logsumexp: whether log-probabilities are needed.
    """

    top_k: int = 1
    with_logsumexp: bool = False


class LogitsTopK(NamedTuple):
    """The k largest logits of each row, and the numbers that convert logits to log-probabilities.

    values, ids: [rows, k], float32 and int64, in descending order; of equal logits the lower id comes first.
    logsumexp: [rows], float32: log of the sum of exp(logit - largest logit), or None. NaN for a row in which all logits
        are -inf.
    is_finite: [rows], bool: whether all logits of the row are finite.
    """

    values: Tensor
    ids: Tensor
    logsumexp: Tensor | None
    is_finite: Tensor

    @classmethod
    def empty(cls, rows: int, k: int, with_logsumexp: bool) -> LogitsTopK:
        """Allocate uninitialised memory for the k best logits of some rows, on the CPU."""
        ids, logsumexp = torch.empty(rows, k, dtype=torch.int64), torch.empty(rows) if with_logsumexp else None
        return cls(torch.empty(rows, k), ids, logsumexp, torch.empty(rows, dtype=torch.bool))

    def rows(self, indices: Sequence[int]) -> LogitsTopK:
        """The results of the rows with the given indices."""
        if len(indices) == self.ids.shape[0] and list(indices) == list(range(len(indices))):
            return self
        # Without `non_blocking`, the host would wait until the device has finished the steps in progress.
        index = torch.tensor(indices).to(self.ids.device, non_blocking=True)
        logsumexp = None if self.logsumexp is None else self.logsumexp[index]
        return LogitsTopK(self.values[index], self.ids[index], logsumexp, self.is_finite[index])

    @property
    def log_probs(self) -> Tensor:
        """Log-probabilities of the k largest logits of each row: [rows, k], float32."""
        return self.log_probs_of(self.values)

    def log_probs_of(self, logits: Tensor) -> Tensor:
        """Log-probabilities of some logits of each row. logits: [rows, n], float32 -> [rows, n], float32."""
        assert self.logsumexp is not None
        return logits - self.values[:, :1] - self.logsumexp[:, None]

    def to_log_probs(self, logits: Tensor) -> Tensor:
        """Overwrite whole rows of logits with their log-probabilities. logits: [rows, vocab], float32."""
        assert self.logsumexp is not None
        return logits.sub_(self.values[:, :1]).sub_(self.logsumexp[:, None])

    def log_prob(self, row: int, logit: Tensor) -> Tensor:
        """Log-probability of one logit of a row. logit: float32 scalar tensor."""
        assert self.logsumexp is not None
        return logit - self.values[row, 0] - self.logsumexp[row]


class DecoderOutput(NamedTuple):
    """Results of a decoder step.

    hidden: [rows, hidden], model dtype: hidden states of the output rows.
    logits: [rows, vocab], float32, in memory that the model's next logits overwrite; None if not requested.
    top_k: the top k of the logits; None if not requested.
    draft_states: [tokens, width], model dtype: hidden states of all tokens of the step, for a draft head to read: the
        inputs of the layers `Stack.taps`, one after the other, or final hidden states. None if they were not kept.
    """

    hidden: Tensor
    logits: Tensor | None = None
    top_k: LogitsTopK | None = None
    draft_states: Tensor | None = None
