"""Limits the tokens of encoder steps: of steps that delay running streams, and of long steps on a slow processor.

See docs/decisions/0126-work-beside-streams.md and docs/decisions/0111-deadlines.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from server.engine.scheduling.prefill_budget import (
    MAX_PREFILL_SECONDS,
    MAX_STEP_STRETCH,
    MIN_PREFILL_TOKENS,
    tokens_of_long_steps,
)
from server.engine.scheduling.token_costs import TokenCosts
from server.ipc.wire.time_limits import NO_PROGRESS_SECONDS

PREFILL_SHARE = 0.5
"""An encoder step gets this part of its usual time while prefill work also lengthens the decode steps."""
ALLOWED_TOKEN_SECONDS = 0.1
"""Seconds that a step may take for each token, in addition to `NO_PROGRESS_SECONDS`. This is ten times the time that a
model of 0.6 billion parameters takes on two slow cores. A text cannot be divided among steps, and attention in a long
text costs more per token."""


def delayed_seconds(decode_seconds: Iterable[float | None], has_prefill: bool) -> float | None:
    """The duration in seconds from which the budget of an encoder step is derived: the duration of a decode step.

    decode_seconds: expected duration of a decode step of each model with streams. The shortest one is used.
    has_prefill: whether prompts wait or are partly computed. If so, only a part of the duration is used.
    Returns None if no duration is known.
    """
    shortest = min((seconds for seconds in decode_seconds if seconds is not None), default=None)
    return shortest if shortest is None or not has_prefill else PREFILL_SHARE * shortest


def max_encoder_tokens(costs: TokenCosts, decode_seconds: float | None, unmeasured: int, most: int) -> int:
    """Largest number of tokens in an encoder step that delays running streams.

    costs: measured cost of encoder tokens.
    decode_seconds: result of `delayed_seconds`.
    unmeasured: the result as long as `costs` or `decode_seconds` has no measurement.
    most: upper bound of the result.
    """
    if decode_seconds is None or not costs.are_measured:
        return unmeasured
    cost = costs.estimate()
    tokens = cost.tokens_within(max(MAX_STEP_STRETCH * decode_seconds, cost.least_seconds))
    return min(costs.with_trial(max(tokens, MIN_PREFILL_TOKENS)), most)


class LongSteps:
    """Limits of encoder steps on a slow processor: their number of tokens, and the time that they may take.

    The texts of a batch are divided among several steps, by the measured time per token of the last step. One long text
    cannot be divided, so the time limit of a step grows with its tokens.

    most_seconds: time after which the step in progress counts as stuck: `NO_PROGRESS_SECONDS`, plus
        `ALLOWED_TOKEN_SECONDS` for each of its tokens.
    """

    def __init__(self) -> None:
        self.most_seconds = NO_PROGRESS_SECONDS
        self._token_seconds: float | None = None

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn the time per token from a step. tokens: tokens of the step. seconds: its duration."""
        self._token_seconds = seconds / tokens

    def tokens(self, most: int) -> int:
        """Largest number of tokens in a step that delays no streams.

        It is `most` if these tokens take at most `MAX_PREFILL_SECONDS`. Otherwise, it is the number that takes this
        time, but at least `MIN_PREFILL_TOKENS`.
        """
        return tokens_of_long_steps(self._token_seconds or 0.0, most)

    def is_long(self, tokens: int) -> bool:
        """Whether a step may take longer than `MAX_PREFILL_SECONDS`.

        Before the first measurement, `ALLOWED_TOKEN_SECONDS` per token are assumed.
        """
        token_seconds = ALLOWED_TOKEN_SECONDS if self._token_seconds is None else self._token_seconds
        return token_seconds * tokens > MAX_PREFILL_SECONDS

    @contextmanager
    def computing(self, tokens: int) -> Iterator[None]:
        """Context manager around a step of `tokens` tokens: `most_seconds` is larger while the step runs."""
        self.most_seconds = NO_PROGRESS_SECONDS + ALLOWED_TOKEN_SECONDS * tokens
        try:
            yield
        finally:
            self.most_seconds = NO_PROGRESS_SECONDS
