"""Limits the prefill work in a step so that running streams keep a steady inter-token latency.

Learns two costs of each model from measured steps: that of a decode-only step (by number of decode tokens), and that of
prefill work (`server.engine.scheduling.token_costs`).
This module works on counts and seconds only. It reads no requests and no clock. See docs/decisions/0026-bursts.md and
docs/decisions/0108-fixed-cost-of-prefill.md.
"""

from __future__ import annotations

from server.engine.scheduling.token_costs import TokenCosts

MIN_PREFILL_TOKENS = 16
"""Tokens that are always allowed, so that a long prompt makes progress even when decode steps are very short."""
MAX_STEP_STRETCH = 0.75
"""A step may take up to 75% longer than a decode-only step. Keeps the p99 gap under 3 times the median."""
NEW_STEP_WEIGHT = 0.25
"""Weight of the newest step in the running mean of decode-only steps."""


class PrefillBudget:
    """Measured costs of one model, in seconds: decode-only steps by number of tokens, and prefill work.

    has_fixed_part: prefill work also has a fixed cost, which does not depend on its tokens. This is the case if
        decode-only steps are captured as CUDA graphs, because steps with prefill are not.
    """

    def __init__(self, has_fixed_part: bool = False) -> None:
        self._decode_step_seconds: dict[int, float] = {}
        self._last_step_seconds = 0.0
        self._prefill_costs = TokenCosts(has_fixed_part)

    def observe(self, decode_tokens: int, prefill_tokens: int, seconds: float) -> None:
        """Learn from a step.

        decode_tokens: tokens of decoding rows.
        prefill_tokens: all other tokens; source tokens are counted as in the scheduler's budget.
        seconds: duration of the step.
        """
        self._last_step_seconds = seconds
        if not prefill_tokens:
            before = self._decode_step_seconds.get(decode_tokens.bit_length(), seconds)
            # Limits the effect of a single step that other work on the machine has delayed.
            change = min(seconds, 2 * before) - before
            self._decode_step_seconds[decode_tokens.bit_length()] = before + NEW_STEP_WEIGHT * change
        elif self._decode_step_seconds:
            usual = self._decode_seconds(max(decode_tokens, 1))
            self._prefill_costs.observe(prefill_tokens, seconds, usual, is_typical=decode_tokens > 0)

    def max_prefill_tokens(
        self, num_decoding: int, num_just_started: int, num_waiting: int, decode_tokens: int
    ) -> int | None:
        """Number of prefill tokens that the next step may process, or None before the first measurements.

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
        return self._prefill_costs.with_trial(max(tokens, MIN_PREFILL_TOKENS))

    def decode_seconds(self, tokens: int) -> float | None:
        """Mean duration of a decode-only step with about this number of tokens, or None before the first one."""
        return self._decode_seconds(tokens) if self._decode_step_seconds else None

    def _decode_seconds(self, tokens: int) -> float:
        """Mean duration of a decode-only step with this number of tokens, or with the nearest measured size class."""
        size = tokens.bit_length()
        return self._decode_step_seconds[min(self._decode_step_seconds, key=lambda seen: (abs(seen - size), seen))]
