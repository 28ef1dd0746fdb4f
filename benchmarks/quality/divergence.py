"""Divergence of next-token distributions from a reference, one slice of the logits at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from benchmarks.quality.texts import WINDOW

LOGITS_TOGETHER = 1 << 25
"""Logits in memory at a time per contestant: 128 MiB in float32. All logits of 20,000 tokens would take 20 GB."""

Logits = Callable[[int, int], Tensor]
"""Function from the first and the last token (exclusive) to their logits, [tokens, vocab], float32."""


@dataclass(frozen=True)
class Divergence:
    """Distance of one model from the reference, over all tokens.

    mean_kl, p99_kl: Kullback-Leibler divergence from the reference, in nats: mean and 99th percentile.
    same_top: share of tokens whose most probable next token is that of the reference.
    perplexity: of the model on the text.
    """

    mean_kl: float
    p99_kl: float
    same_top: float
    perplexity: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def divergence(reference: Logits, model: Logits, next_tokens: Tensor, vocab_size: int) -> Divergence:
    """Compare the distributions of two models.

    next_tokens: [tokens], int64, the token that follows each position; -1 at the end of a text.
    Slices are powers of two, so that each belongs to one text of `texts.WINDOW` tokens.
    """
    tokens = min(WINDOW, 1 << (LOGITS_TOGETHER // vocab_size).bit_length() - 1)
    kls, same, losses = [], [], []
    for first in range(0, len(next_tokens), tokens):
        last = min(first + tokens, len(next_tokens))
        expected = torch.log_softmax(reference(first, last), 1)
        found = torch.log_softmax(model(first, last), 1)
        same.append(expected.argmax(1) == found.argmax(1))
        following = next_tokens[first:last]
        has_next = following >= 0
        losses.append(-found[has_next].gather(1, following[has_next][:, None])[:, 0].double())
        # Sums in float64: the divergence is a small difference of large numbers.
        kls.append(((expected - found) * expected.exp()).sum(1, dtype=torch.float64))
    kl = torch.cat(kls)
    return Divergence(
        mean_kl=float(kl.mean()),
        p99_kl=float(kl.quantile(0.99)),
        same_top=float(torch.cat(same).double().mean()),
        perplexity=math.exp(float(torch.cat(losses).mean())),
    )
