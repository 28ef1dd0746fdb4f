"""Count live connections by API key, and end them when the server drains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from server.errors import Overloaded
from server.limits.key_limits import KeyLimits
from server.limits.refusals import LIVE_SESSIONS

MAX_SESSIONS_PER_KEY = 16
"""Live connections of one API key, or of all clients without keys. A key's `max_requests` may be lower."""


class LiveSessions:
    """The open live connections of all keys."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._stops: set[Callable[[], None]] = set()

    @contextmanager
    def open(self, key: KeyLimits | None, stop: Callable[[], None]) -> Iterator[None]:
        """Context manager: count a connection. Raises Overloaded if its key has too many.

        stop: called when the server drains.
        """
        name = "" if key is None else key.name
        most = MAX_SESSIONS_PER_KEY
        if key is not None and key.max_requests is not None:
            most = min(most, key.max_requests)
        if self._counts[name] >= most:
            raise Overloaded(
                f"{self._counts[name]:,} live connections are open", LIVE_SESSIONS.refusal(f"{most:,}"), retry_after=1
            )
        self._counts[name] += 1
        self._stops.add(stop)
        try:
            yield
        finally:
            self._stops.discard(stop)
            self._counts[name] -= 1
            if not self._counts[name]:
                del self._counts[name]

    def stop(self) -> None:
        """Ask every connection to end after the turns that it has committed."""
        for stop in tuple(self._stops):
            stop()
