"""Measured duration of decode steps by their number of tokens, from which the length of drafts is chosen.

Works on counts and seconds only; it sees no requests and reads no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

PRIOR_SLOPE = 0.04
"""Assumed cost of one more token, as a fraction of the smallest step's duration, until a higher cost is measured."""
FASTER_WEIGHT, SLOWER_WEIGHT = 0.5, 0.125
"""Weight of a new step in the running mean, if the step was faster than the mean, and if it was slower. A step is often
delayed by something else, and never accelerated."""
TRIALS = 3
"""The assumed cost of a size is used until the size was measured this many times: its first steps may be slow."""
MAX_AGE_STEPS = 2048
"""A measurement is dropped after this many steps without one of its size, so that the size may be tried again."""
BASELINE_SHARE = 0.75
"""A step with at least this share of the tokens counts as a measurement of the step without drafts."""


@dataclass(slots=True)
class _Size:
    """Steps with one number of tokens. seconds: running mean. count: steps so far. last: number of the last step."""

    seconds: float
    count: int
    last: int


class StepCosts:
    """Seconds of decode steps of one model."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._sorted: list[int] = []
        self._num_steps = 0

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from a step without prefill. tokens: tokens of its rows, drafts included."""
        self._num_steps += 1
        size = self._sizes.get(tokens)
        if size is None:
            self._sizes[tokens] = _Size(seconds, 1, self._num_steps)
            self._sorted = sorted(self._sizes)
        else:
            change = min(seconds, 2 * size.seconds) - size.seconds
            size.seconds += change * (FASTER_WEIGHT if change < 0 else SLOWER_WEIGHT)
            size.count += 1
            size.last = self._num_steps
        if self._num_steps % MAX_AGE_STEPS == 0:
            self._sizes = {n: one for n, one in self._sizes.items() if self._num_steps - one.last < MAX_AGE_STEPS}
            self._sorted = sorted(self._sizes)

    def has_baseline(self, rows: int) -> bool:
        """Whether a step with `rows` tokens, or slightly fewer, was measured lately."""
        place = bisect_left(self._sorted, BASELINE_SHARE * rows)
        return place < len(self._sorted) and self._sorted[place] <= rows

    def seconds(self, tokens: int) -> float:
        """Expected duration of a step with this number of tokens. At least one step must have been measured."""
        size = self._sizes.get(tokens)
        if size is not None and size.count >= TRIALS:
            return size.seconds
        place = bisect_left(self._sorted, tokens)
        if place == 0:
            return self._sizes[self._sorted[0]].seconds
        first, below = self._sorted[0], self._sorted[place - 1]
        smallest, least = self._sizes[first].seconds, self.seconds(below)
        slope = PRIOR_SLOPE * smallest
        if below > first:
            slope = max(slope, (least - smallest) / (below - first))
        assumed = least + slope * (tokens - below)
        if size is not None:
            return min(size.seconds, assumed)
        if place == len(self._sorted):
            return assumed
        above = self._sorted[place]
        return least + (self._sizes[above].seconds - least) * (tokens - below) / (above - below)
