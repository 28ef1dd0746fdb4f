"""Limits the prefill work of a step, so that running streams keep a steady inter-token latency.

All constants of this policy are here: for prefill work in decode steps, and for encoder steps between decode steps
(`server.engine.scheduling.encoder_budget`). `server.engine.scheduling.step_time` measures the durations of steps.
This module works on counts and seconds only. It reads no requests and no clock. See docs/decisions/0026-bursts.md and
docs/decisions/0126-work-beside-streams.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.backends.cuda.graphs.token_sizes import smallest_size
from server.engine.scheduling.step_costs import StepCosts
from server.engine.scheduling.step_time import StepTime

MIN_PREFILL_TOKENS = 16
"""Tokens that are always allowed, so that a long prompt or text makes progress even when decode steps are short."""
MAX_STEP_STRETCH = 0.75
"""Added work may take 75% of the time of a decode-only step.

The 99th percentile of the inter-token latency then stays under 3 times its median.
"""
MAX_PREFILL_SECONDS = 10.0
"""Longest duration of a step without decoding rows.

A long prompt then reports progress in time (`server.ipc.wire.time_limits`), even if its next tokens take ten times as
long. Other requests may have to wait for one such step.
"""
PREFILL_PER_DECODE = 4
"""Most prefill tokens per decoding row of a step, as long as no step times were measured."""
_SHARED_DIVISOR = 8
"""As long as no step times were measured, added work may have an eighth of the tokens of the largest step."""


def tokens_of_long_steps(token_seconds: float, most: int) -> int:
    """Largest number of tokens in a step that delays no streams.

    It is `most` if these tokens take at most `MAX_PREFILL_SECONDS`. Otherwise, it is the number that takes this
    time, but at least `MIN_PREFILL_TOKENS`.

    token_seconds: time per token in the previous step; 0 if no step was measured.
    """
    if token_seconds * most <= MAX_PREFILL_SECONDS:
        return most
    return max(int(MAX_PREFILL_SECONDS / token_seconds), MIN_PREFILL_TOKENS)


def shared_tokens(max_batch_tokens: int) -> int:
    """Token budget of a step that delays running streams, as long as no step times were measured."""
    return max(max_batch_tokens // _SHARED_DIVISOR, 1)


class PrefillBudget(StepTime):
    """Limits the prefill work in steps that delay the streams of one model, from measured step times.

    has_fixed_part, decode_steps: arguments of `StepTime`.
    step_sizes: numbers of tokens for which steps with prefill were captured, ascending. A step takes as long as the
        next larger captured step. It is therefore filled with prefill tokens up to this size, and counts as a step of
        this size.
    """

    def __init__(
        self, has_fixed_part: bool = False, decode_steps: StepCosts | None = None, step_sizes: Sequence[int] = ()
    ) -> None:
        super().__init__(has_fixed_part, decode_steps)
        self._step_sizes = tuple(step_sizes)

    def observe(self, decode_tokens: int, prefill_tokens: int, seconds: float) -> None:
        super().observe(decode_tokens, self._filled(decode_tokens, prefill_tokens), seconds)

    def expected_seconds(self, decode_tokens: int, prefill_tokens: int) -> float | None:
        return super().expected_seconds(decode_tokens, self._filled(decode_tokens, prefill_tokens))

    def _filled(self, decode_tokens: int, prefill_tokens: int) -> int:
        """Number of prefill tokens with which a step reaches the size of the next larger captured step.

        Returns `prefill_tokens` if no captured step is large enough.
        """
        size = smallest_size(self._step_sizes, decode_tokens + prefill_tokens) if prefill_tokens else None
        return prefill_tokens if size is None else size - decode_tokens

    def tokens_of_long_steps(self, most: int) -> int:
        """Largest number of prefill tokens in a step without decoding rows.

        It is `most` if these tokens take at most `MAX_PREFILL_SECONDS`. Otherwise, it is the number that takes this
        time, but at least `MIN_PREFILL_TOKENS`.
        """
        return tokens_of_long_steps(self._last_prefill_token_seconds, most)

    def max_prefill_tokens(
        self, num_decoding: int, num_just_started: int, num_waiting: int, decode_tokens: int
    ) -> int | None:
        """Largest number of prefill tokens that the next step may process; None before the first measurements.

        num_decoding: groups that have received at least two tokens.
        num_just_started: groups that have received exactly one token.
        num_waiting: groups that would receive their first token from this prefill work.
        decode_tokens: decode tokens already in the step.
        """
        if not (self._decode_step_seconds and self._prefill_costs.are_measured):
            return None
        decode_seconds, cost = self._decode_seconds(decode_tokens), self._prefill_costs.estimate()
        least, bounds = cost.least_seconds, []
        if num_decoding:
            bounds.append(max(MAX_STEP_STRETCH * decode_seconds, least) * max(num_waiting / num_decoding, 1.0))
        if num_just_started:
            stretch = max(decode_seconds, self._last_step_seconds, least)
            bounds.append(stretch * max(num_waiting / num_just_started, 1.0))
        tokens = cost.tokens_within(min(bounds, default=0.0))
        return self._filled(decode_tokens, self._prefill_costs.with_trial(max(tokens, MIN_PREFILL_TOKENS)))
