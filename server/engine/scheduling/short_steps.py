"""Decides when short groups start in a step of their own, before the step of all running groups.

A step of 128 rows takes many times as long as the prompt of a short request alone. The request would wait for all of
it, although its first token needs a small part of it. The steps of short groups take a limited part of the time.
Works on seconds only; it sees no requests and reads no clock. See docs/decisions/0168-steps-of-short-requests.md.
"""

from __future__ import annotations

MIN_RATIO = 3.0
"""Short groups get a step of their own if the step of all groups takes at least this many times as long."""
MAX_SHARE = 0.1
"""Longest time of a step of short groups, as a share of the steps of all groups since the previous such step."""


class ShortSteps:
    """The steps of short groups of one model, and the number of other steps between them."""

    def __init__(self) -> None:
        self._others = 0

    def allows(self, short_seconds: float, full_seconds: float) -> bool:
        """Whether short groups may start in a step of their own.

        short_seconds: expected duration of this step. full_seconds: expected duration of the step of all groups.
        """
        longest = min(full_seconds / MIN_RATIO, MAX_SHARE * full_seconds * self._others)
        return short_seconds <= longest

    def count(self, is_short: bool) -> None:
        """Count a step. is_short: it is a step of short groups."""
        self._others = 0 if is_short else self._others + 1
