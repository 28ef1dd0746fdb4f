"""The reference implementation of top-k logits, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from models.backends.logits import LogitsTopK


def logits_top_k(logits: Tensor, k: int, with_logsumexp: bool) -> LogitsTopK:
    """The k largest logits of each row. logits: [rows, vocab], float32; 1 <= k <= vocab.

    Of equal logits, the lower id is first.

    with_logsumexp: whether the result also has the log-sum-exp of each row.
    """
    ids = logits.argmax(dim=-1, keepdim=True) if k == 1 else sort_keys(logits).topk(k, dim=-1).indices
    values = logits.gather(1, ids).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    logsumexp = (logits - values[:, :1]).double().logsumexp(dim=-1).float() if with_logsumexp else None
    return LogitsTopK(values, ids, logsumexp, torch.isfinite(logits).all(dim=-1))


def sort_keys(logits: Tensor) -> Tensor:
    """Integer keys that sort like the logits: [rows, vocab], int64. Of equal logits, the lower id has the larger key.

    The keys of a row are all different. NaN has the lowest keys.
    """
    # Adding zero gives -0.0 and 0.0 the same bits.
    bits = (logits + 0.0).view(torch.int32).long()
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).masked_fill(logits.isnan(), 1 - (1 << 31))
    return rising * (1 << 32) - torch.arange(logits.shape[1], device=logits.device)
