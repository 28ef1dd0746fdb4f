"""Decide whether a decoded window is accepted, is decoded again at a higher temperature, or has no speech.

With the compression ratio of token ids, the rules for one attempt equal `generate_with_fallback` of `transformers` 5.
With the compression ratio of texts, they equal the code published with Radford et al. 2022, arXiv:2212.04356, section
4.5. If every attempt is rejected, the best of them is used. See docs/decisions/0188-no-sentence-is-lost.md.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from server.errors import InvalidRequest

DEFAULT_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
COMPRESSION_RATIO, LOGPROB, NO_SPEECH = 2.4, -1.0, 0.6
"""Default thresholds of the published code and of faster-whisper."""
MIN_INCREMENT = 0.1
"""Minimum difference between the temperatures that are tried one after another."""
CONDITION_TEMPERATURE = 0.5
"""If a window was decoded at this temperature or above, the next window gets no earlier text as its prompt."""


class Verdict(NamedTuple):
    """The decision about one attempt to decode a window.

    kind: `accepted`, `rejected` (decode the window again), or `silent` (no speech).
    excess: by how much the attempt is beyond the thresholds: its compression ratio minus the maximum ratio, or the
        minimum mean log-probability minus its mean log-probability, whichever is larger. Above 0 for a rejected
        attempt.
    """

    kind: Literal["accepted", "rejected", "silent"]
    excess: float = 0.0


@dataclass(frozen=True)
class FallbackRules:
    """The temperatures to try for a window, and the thresholds that decide about it. None means no threshold.

    compression_ratio: maximum of the function `compression_ratio` for the token ids, as in `transformers`.
    logprob: minimum of the mean log-probability of the tokens.
    no_speech: a window has no speech if its probability of no speech is above this threshold and its mean
        log-probability is below `logprob`.
    text_compression_ratio: maximum of the function `text_compression_ratio` for the text.
    """

    temperatures: tuple[float, ...] = (0.0,)
    compression_ratio: float | None = None
    logprob: float | None = None
    no_speech: float | None = None
    text_compression_ratio: float | None = None

    @property
    def needs_logprobs(self) -> bool:
        return self.logprob is not None or self.no_speech is not None

    @property
    def accepts_everything(self) -> bool:
        """Whether the first result of every window is accepted, so that its text is final while it is generated."""
        return len(self.temperatures) == 1 and self.no_speech is None

    def verdict(
        self,
        token_ids: Sequence[int],
        vocab_size: int,
        mean_logprob: float | None,
        no_speech_prob: float | None,
        text: Callable[[], str] = lambda: "",
        earlier_logprobs: Sequence[float | None] = (),
    ) -> Verdict:
        """Decide about one attempt to decode a window.

        token_ids: its new tokens, including the end token.
        vocab_size: number of logits of the model.
        mean_logprob: mean log-probability of these tokens; None if it was not computed.
        no_speech_prob: probability that the window has no speech; None if it was not computed.
        text: returns the text of the tokens.
        earlier_logprobs: `mean_logprob` of the rejected attempts before this one. If one of them was likely, the
            window is not silent: tokens that are sampled at a high temperature are often unlikely.
        """
        shortfall = self._shortfall(mean_logprob)
        has_speech = self.no_speech is None or no_speech_prob is None or no_speech_prob <= self.no_speech
        has_speech |= any(self._shortfall(mean) <= 0 for mean in earlier_logprobs)
        if shortfall > 0 and not has_speech:
            return Verdict("silent")
        excess = shortfall
        if self.compression_ratio is not None:
            excess = max(excess, compression_ratio(token_ids, vocab_size) - self.compression_ratio)
        if self.text_compression_ratio is not None:
            excess = max(excess, text_compression_ratio(text()) - self.text_compression_ratio)
        return Verdict("rejected" if excess > 0 else "accepted", excess)

    def _shortfall(self, mean_logprob: float | None) -> float:
        """By how much a mean log-probability is below the minimum; at most 0 if it is not below or has no minimum."""
        return 0.0 if self.logprob is None or mean_logprob is None else self.logprob - mean_logprob


def compression_ratio(token_ids: Sequence[int], vocab_size: int) -> float:
    """Size of token ids in bytes, divided by their size after zlib compression. High values mean repetition.

    vocab_size: number of logits. It determines the number of bytes for one id.
    """
    width = int(math.log2(vocab_size) / 8) + 1
    data = b"".join(token.to_bytes(width, "little") for token in token_ids)
    return len(data) / len(zlib.compress(data))


def text_compression_ratio(text: str) -> float:
    """Size of a text in bytes (UTF-8), divided by its size after zlib compression. High values mean repetition."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


def temperatures(first: float, increment: float | None) -> tuple[float, ...]:
    """Temperatures from `first` to 1 in steps of `increment`. Only `first` if `increment` is None or 0.

    Raises InvalidRequest for an increment below `MIN_INCREMENT`, which would give too many temperatures.
    """
    if not increment:
        return (first,)
    if increment < MIN_INCREMENT:
        raise InvalidRequest(
            f"`temperature_increment_on_fallback` must be 0 or at least {MIN_INCREMENT}",
            "temperature_increment_on_fallback",
        )
    count = int((1.0 - first) / increment + 1e-6) + 1
    return tuple(round(first + increment * step, 6) for step in range(count))
