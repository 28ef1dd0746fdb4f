"""Learns how long the steps of one model take, from the measured duration of each step.

The prefill budget, the length of encoder steps between decode steps, and the length of drafts use the same estimates.
Works on counts and seconds only; it sees no requests and reads no clock.
"""

from __future__ import annotations

from server.engine.scheduling.step_costs import StepCosts
from server.engine.scheduling.token_costs import TokenCosts


class StepTime:
    """Measured durations of decode-only steps by their number of tokens, and measured costs of prefill work.

    has_fixed_part: whether prefill work may also have a fixed cost, which does not depend on its tokens. This is the
        case if decode-only steps are captured as CUDA graphs, and some steps with prefill are not.
    decode_steps: learns the durations of decode-only steps; None makes a new one. A drafter of the model uses the same
        object.
    """

    def __init__(self, has_fixed_part: bool = False, decode_steps: StepCosts | None = None) -> None:
        self._decode_step_seconds = StepCosts() if decode_steps is None else decode_steps
        self._prefill_costs = TokenCosts(has_fixed_part)
        self._last_step_seconds = 0.0
        self._last_prefill_token_seconds = 0.0

    def observe(self, decode_tokens: int, prefill_tokens: int, seconds: float) -> None:
        """Learn from a step.

        decode_tokens: tokens of decoding rows.
        prefill_tokens: all other tokens; source tokens are counted as in the scheduler's budget.
        seconds: duration of the step.
        """
        self._last_step_seconds = seconds
        if prefill_tokens:
            self._last_prefill_token_seconds = seconds / prefill_tokens
        if not prefill_tokens:
            self._decode_step_seconds.observe(decode_tokens, seconds)
        elif self._decode_step_seconds:
            usual = self._decode_seconds(max(decode_tokens, 1))
            self._prefill_costs.observe(prefill_tokens, seconds, usual, is_typical=decode_tokens > 0)

    def decode_seconds(self, tokens: int) -> float | None:
        """Expected seconds of a decode-only step with about this number of tokens; None before one was measured."""
        return self._decode_seconds(tokens) if self._decode_step_seconds else None

    def expected_seconds(self, decode_tokens: int, prefill_tokens: int) -> float | None:
        """Expected seconds of a step with these tokens; None until steps with and without prefill were measured."""
        if not (self._decode_step_seconds and self._prefill_costs.are_measured):
            return None
        seconds = self._decode_seconds(max(decode_tokens, 1))
        if prefill_tokens:
            cost = self._prefill_costs.estimate()
            seconds += cost.fixed_seconds + cost.token_seconds * prefill_tokens
        return seconds

    def _decode_seconds(self, tokens: int) -> float:
        return self._decode_step_seconds.usual_seconds(tokens)
