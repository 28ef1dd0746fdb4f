"""Learns the duration of decode-only steps by their number of tokens.

Works on counts and seconds only; it sees no requests and reads no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

PRIOR_SLOPE = 0.04
"""Assumed cost of one more token, as a fraction of the smallest step's duration, until a higher cost is measured."""
WINDOW_STEPS = 7
"""The duration of a size is the median of this many last steps of the size. Other work often delays a step, but nothing
makes it faster. The median of a few steps ignores a single delay, and is as stable as a mean."""
TRIALS = 3
"""The assumed cost of a size is used until the size was measured this many times: its first steps may be slow."""
MAX_AGE_STEPS = 2048
"""A measurement is dropped after this many steps without a step of its size, so that the size may be tried again."""
BASELINE_SHARE = 0.75
"""The cost of a step without drafts counts as known if a step with at least this part of its tokens was measured."""


class _Size:
    """The steps of one size.

    seconds: median duration of the last steps. count: number of steps so far.
    last: index of the last step of this size among all steps.
    """

    __slots__ = ("_latest", "count", "last", "seconds")

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=WINDOW_STEPS)
        self.seconds = 0.0
        self.count = self.last = 0

    def add(self, seconds: float, index: int) -> None:
        self._latest.append(seconds)
        self.seconds = sorted(self._latest)[(len(self._latest) - 1) // 2]
        self.count += 1
        self.last = index


class StepCosts:
    """Measured durations of one model's decode steps.

    The durations are kept twice: by the exact number of tokens in a step, and by the bit length of this number.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._powers: dict[int, _Size] = {}
        self._sorted: list[int] = []
        self._num_steps = 0

    def __len__(self) -> int:
        """Number of different sizes, in tokens, that were measured lately."""
        return len(self._sizes)

    def clear(self) -> None:
        """Forget all measured steps, because later steps will have other durations."""
        self._sizes, self._powers, self._sorted, self._num_steps = {}, {}, [], 0

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from a step without prefill. tokens: tokens of its rows, drafts included. seconds: its duration."""
        self._num_steps += 1
        if tokens not in self._sizes:
            self._sizes[tokens] = _Size()
            self._sorted = sorted(self._sizes)
        self._sizes[tokens].add(seconds, self._num_steps)
        self._powers.setdefault(tokens.bit_length(), _Size()).add(seconds, self._num_steps)
        if self._num_steps % MAX_AGE_STEPS == 0:
            self._sizes = {
                n: step_size for n, step_size in self._sizes.items() if self._num_steps - step_size.last < MAX_AGE_STEPS
            }
            self._sorted = sorted(self._sizes)

    def has_baseline(self, rows: int) -> bool:
        """Whether a step with `rows` tokens, or slightly fewer, was measured lately."""
        place = bisect_left(self._sorted, BASELINE_SHARE * rows)
        return place < len(self._sorted) and self._sorted[place] <= rows

    def usual_seconds(self, tokens: int) -> float:
        """Duration in seconds of a step with about this number of tokens.

        It is the median of measured steps whose token count has the same, or the nearest, bit length. Steadier than
        `seconds` if the number of tokens changes with each step. At least one step must have been measured.
        """
        power = tokens.bit_length()
        return self._powers[min(self._powers, key=lambda seen: (abs(seen - power), seen))].seconds

    def seconds(self, tokens: int) -> float:
        """Expected duration in seconds of a step with exactly this number of tokens.

        It is the measured median if this size was measured often enough. Otherwise it is interpolated between measured
        sizes, or extrapolated with an assumed cost per token. At least one step must have been measured.
        """
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
