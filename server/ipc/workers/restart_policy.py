"""Decides when a failed worker is started again, and when the server gives up on the worker.

The pause before a restart doubles with each failure. It becomes short again only after a worker was ready for some
time. A worker that fails soon after it became ready is therefore not restarted in a tight loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RestartLimits:
    """Pauses before a restart, and the number of failures that are too many.

    first_pause_seconds: pause before a restart after the first failure. The pause doubles with each failure.
    longest_pause_seconds: upper bound of the pause.
    steady_seconds: after a worker was ready for this time, the next failure counts as the first one again.
    window_seconds: failures within this time are counted together.
    max_failures: failures within the window, or failed starts in a row, after which the server gives up.
    """

    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 5.0
    steady_seconds: float = 30.0
    window_seconds: float = 60.0
    max_failures: int = 5


class RestartPolicy:
    """Counts the failures of one worker. clock: returns the present time in seconds."""

    def __init__(self, limits: RestartLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._times: deque[float] = deque()
        self._in_series = 0
        self._failed_starts = 0

    def failed(self, ready_seconds: float | None) -> None:
        """Count a failure. ready_seconds: time for which the worker was ready; None if it was never ready."""
        now = self._clock()
        if ready_seconds is not None and ready_seconds >= self.limits.steady_seconds:
            self._in_series = 0
        self._in_series += 1
        self._failed_starts = self._failed_starts + 1 if ready_seconds is None else 0
        self._times.append(now)
        while now - self._times[0] > self.limits.window_seconds:
            self._times.popleft()

    @property
    def pause_seconds(self) -> float:
        """Seconds to wait before the next start."""
        doublings = min(self._in_series - 1, 32)
        return min(self.limits.first_pause_seconds * 2.0**doublings, self.limits.longest_pause_seconds)

    @property
    def exhausted(self) -> str | None:
        """Why the worker must not be started again, such as "failed 5 times within 60 s"; None if it may be started."""
        if len(self._times) >= self.limits.max_failures:
            return f"failed {len(self._times)} times within {self.limits.window_seconds:g} s"
        if self._failed_starts >= self.limits.max_failures:
            return f"failed to start {self._failed_starts} times in a row"
        return None
