"""Decides when short groups (few tokens to generate) start in a separate step, before the step of all running groups.

A step of 128 rows takes many times as long as the prompt of a short request alone. The request would wait for the whole
step, although its own computation is a small part. Separate steps may take only a limited part of the time.
Works on seconds only; it sees no requests and reads no clock. See docs/decisions/0168-steps-of-short-requests.md.
"""

from __future__ import annotations

MIN_RATIO = 3.0
"""Short groups get a separate step only if the step of all groups takes at least this many times as long."""
MAX_SHARE = 0.1
"""Longest duration of a separate step of short groups, as a fraction of the time of all steps since the last one."""


class ShortSteps:
    """Counts the steps of one model since its last separate step of short groups, and decides when the next may run."""

    def __init__(self) -> None:
        self._others = 0

    def allows(self, short_seconds: float, full_seconds: float) -> bool:
        """Whether short groups may start in a separate step.

        short_seconds: expected duration of the separate step.
        full_seconds: expected duration of the step of all groups.
        """
        longest = min(full_seconds / MIN_RATIO, MAX_SHARE * full_seconds * self._others)
        return short_seconds <= longest

    def count(self, is_short: bool) -> None:
        """Count a step. is_short: whether it is a separate step of short groups."""
        self._others = 0 if is_short else self._others + 1
