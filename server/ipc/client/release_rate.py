"""Estimates when an amount will have been released, from the rate of releases in the last seconds."""

from __future__ import annotations

import math
import time
from collections import deque

MAX_RETRY_SECONDS = 60
_WINDOW_SECONDS = 10.0
_BUCKET_SECONDS = 0.25


class ReleaseRate:
    """Rate at which something is released, such as places in a queue, from the releases of the last 10 seconds."""

    def __init__(self) -> None:
        self._released: deque[tuple[float, int]] = deque()
        self._total = 0

    def add(self, amount: int) -> None:
        """Record that an amount was released now."""
        now = time.monotonic()
        self._total += amount
        if self._released and now - self._released[-1][0] < _BUCKET_SECONDS:
            began, earlier = self._released.pop()
            self._released.append((began, earlier + amount))
        else:
            self._released.append((now, amount))
        while now - self._released[0][0] > _WINDOW_SECONDS:
            self._total -= self._released.popleft()[1]

    def seconds_until(self, amount: int) -> int:
        """Estimated seconds until this amount will have been released, from 1 to `MAX_RETRY_SECONDS`.

        Returns 1 if nothing was ever released.
        """
        if not self._released:
            return 1
        elapsed = max(time.monotonic() - self._released[0][0], _BUCKET_SECONDS)
        return min(max(math.ceil(amount * elapsed / max(self._total, 1e-9)), 1), MAX_RETRY_SECONDS)
