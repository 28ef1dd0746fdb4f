"""Limits an encoder step that delays running streams, by the values of the prefill budget.

See docs/decisions/0126-work-beside-streams.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from server.engine.scheduling.prefill_budget import MAX_STEP_STRETCH, MIN_PREFILL_TOKENS
from server.engine.scheduling.token_costs import TokenCosts

PREFILL_SHARE = 0.5
"""Part of its time that an encoder step gets while prefill work lengthens the decode steps beside it."""


def delayed_seconds(decode_seconds: Iterable[float | None], has_prefill: bool) -> float | None:
    """Duration of the decode steps that an encoder step is measured by; None if no duration is known.

    decode_seconds: expected duration of a decode step of each model with streams; the shortest one counts.
    has_prefill: prompts wait, or are partly computed. Only a part of the duration counts then.
    """
    shortest = min((seconds for seconds in decode_seconds if seconds is not None), default=None)
    return shortest if shortest is None or not has_prefill else PREFILL_SHARE * shortest


def max_encoder_tokens(costs: TokenCosts, decode_seconds: float | None, unmeasured: int, most: int) -> int:
    """Tokens of an encoder step beside streams.

    costs: measured cost of encoder tokens.
    decode_seconds: see `delayed_seconds`.
    unmeasured: tokens of the step as long as one of the two is not measured.
    most: tokens of the largest step.
    """
    if decode_seconds is None or not costs.are_measured:
        return unmeasured
    cost = costs.estimate()
    tokens = cost.tokens_within(max(MAX_STEP_STRETCH * decode_seconds, cost.least_seconds))
    return min(costs.with_trial(max(tokens, MIN_PREFILL_TOKENS)), most)
