"""A fake model whose hidden states are already the logits."""

from __future__ import annotations

import torch

from models.backends.choice import backend
from models.backends.logits import LogitsRequest, LogitsTopK


class StoredLogits:
    """The fake model, with the methods of `TransformerProtocol` that token selection uses.

    max_logits_rows: as in `Transformer`.
    """

    def __init__(self, max_logits_rows: int = 64) -> None:
        self.max_logits_rows = max_logits_rows

    def logits_top_k(self, hidden: torch.Tensor, request: LogitsRequest) -> tuple[torch.Tensor, LogitsTopK]:
        logits = hidden.clone()
        return logits, backend(logits).logits_top_k(logits, min(request.top_k, logits.shape[1]), request.with_logsumexp)
