"""Top k of the logits of each row, log-sum-exp, and whether all logits are finite."""

from __future__ import annotations

from torch import Tensor

from models.logits import LogitsTopK

MAX_TOP_K = 64
"""Largest k that the kernel takes."""


def logits_top_k(logits: Tensor, k: int = 1, with_logsumexp: bool = False) -> LogitsTopK:
    """The k largest logits of each row; of equal logits, the lower id comes first.

    logits: [rows, vocab], float32; the last dimension contiguous. 1 <= k <= min(vocab, MAX_TOP_K).
    The results of a row depend on that row alone.
    """
    raise NotImplementedError
