"""Measure the divergence of next-token distributions from those of a reference, one slice of the logits at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

import torch
from torch import Tensor

LOGITS_TOGETHER = 1 << 25
"""Number of logits per model that are in memory at a time, 128 MiB in float32. 20,000 tokens would take 20 GB."""

Logits = Callable[[int, int], Tensor]
"""Function that returns the logits of a range of a text's tokens, [tokens, vocab], float32.

Its arguments are the index of the first token, and the index after the last one."""


class Model(Protocol):
    """A decoder. `read` computes a text, given as token ids, and returns a function that computes its logits."""

    def read(self, text: Sequence[int]) -> Logits: ...


@dataclass(frozen=True)
class Divergence:
    """Distance of one model from the reference, over all tokens.

    mean_kl, p99_kl: mean and 99th percentile of the Kullback-Leibler divergence from the reference, in nats.
    kl_error: standard error of the mean, computed as if tokens were independent.
    same_top: share of tokens for which the most probable next token is the same as in the reference.
    perplexity: perplexity of the model on the texts.
    """

    mean_kl: float
    kl_error: float
    p99_kl: float
    same_top: float
    perplexity: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def measure(reference: Model, models: Sequence[Model], text: Sequence[int], vocab_size: int) -> list[Tensor]:
    """Compare models with the reference on one text. Every token is predicted from the tokens before it.

    text: token ids.
    Returns for each model a tensor [3, tokens], float64: the divergence; whether the most probable next token is the
    same as the reference's (1 or 0); and the negative logarithm of the next token's probability (NaN for the last
    token).
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
    """Summarize the divergence of one model over several texts. measured: result of `measure` for each text."""
    kl, same, losses = torch.cat(list(measured), 1).double()
    return Divergence(
        mean_kl=float(kl.mean()),
        kl_error=float(kl.std() / len(kl) ** 0.5),
        p99_kl=float(kl.quantile(0.99)),
        same_top=float(same.mean()),
        perplexity=math.exp(float(losses.nanmean())),
    )
