"""Divergence of next-token distributions from a reference, one slice of the logits at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

import torch
from torch import Tensor

LOGITS_TOGETHER = 1 << 25
"""Logits in memory at a time per model: 128 MiB in float32. All logits of 20,000 tokens would take 20 GB."""

Logits = Callable[[int, int], Tensor]
"""Function from the first and the last token (exclusive) of a text to their logits, [tokens, vocab], float32."""


class Model(Protocol):
    """A decoder. `read` computes a text, and returns its logits."""

    def read(self, text: Sequence[int]) -> Logits: ...


@dataclass(frozen=True)
class Divergence:
    """Distance of one model from the reference, over all tokens.

    mean_kl, p99_kl: Kullback-Leibler divergence from the reference, in nats: mean and 99th percentile.
    kl_error: standard error of the mean, as if tokens were independent.
    same_top: share of tokens whose most probable next token is that of the reference.
    perplexity: of the model on the text.
    """

    mean_kl: float
    kl_error: float
    p99_kl: float
    same_top: float
    perplexity: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def measure(reference: Model, models: Sequence[Model], text: Sequence[int], vocab_size: int) -> list[Tensor]:
    """Compare models on one text, of which every token is predicted from those before it (teacher forcing).

    Returns for each model [3, tokens], float64: divergence, whether the most probable next token is the same, and the
    negative logarithm of the next token's probability (NaN for the last token).
    """
    tokens = max(1, LOGITS_TOGETHER // vocab_size)
    following = torch.tensor([*text[1:], 0])
    exact, logits = reference.read(text), [model.read(text) for model in models]
    found = [torch.full((3, len(text)), math.nan, dtype=torch.float64) for _ in models]
    for first in range(0, len(text), tokens):
        last = min(first + tokens, len(text))
        expected = torch.log_softmax(exact(first, last), 1)
        weights, top = expected.exp(), expected.argmax(1)
        for model_logits, numbers in zip(logits, found, strict=True):
            log_probs = torch.log_softmax(model_logits(first, last), 1)
            # Sums in float64: the divergence is a small difference of large numbers.
            numbers[0, first:last] = ((expected - log_probs) * weights).sum(1, dtype=torch.float64)
            numbers[1, first:last] = (top == log_probs.argmax(1)).double()
            numbers[2, first:last] = -log_probs.gather(1, following[first:last, None])[:, 0].double()
    for numbers in found:
        numbers[2, -1] = math.nan
    return found


def summarize(measured: Sequence[Tensor]) -> Divergence:
    """The distance over several texts. measured: what `measure` returned for one model, a tensor for each text."""
    kl, same, losses = torch.cat(list(measured), 1).double()
    return Divergence(
        mean_kl=float(kl.mean()),
        kl_error=float(kl.std() / len(kl) ** 0.5),
        p99_kl=float(kl.quantile(0.99)),
        same_top=float(same.mean()),
        perplexity=math.exp(float(losses.nanmean())),
    )
