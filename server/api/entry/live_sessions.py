"""Count live connections by API key, and end them when the server drains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from server.errors import Overloaded
from server.limits.key_limits import KeyLimits
from server.limits.refusals import LIVE_SESSIONS

MAX_SESSIONS_PER_KEY = 16
"""Maximum number of live connections per API key, or of all clients without keys. `max_requests` of a key may lower it.
"""


class LiveSessions:
    """The open live connections, counted by API key."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._stops: set[Callable[[], None]] = set()

    @contextmanager
    def open(self, key: KeyLimits | None, stop: Callable[[], None]) -> Iterator[None]:
        """Context manager that counts a connection as open. Raises Overloaded if its key has too many.

        key: limits of the API key; None for a client without a key.
        stop: called when the server drains.
        """
        name = "" if key is None else key.name
        most, refusal = MAX_SESSIONS_PER_KEY, LIVE_SESSIONS.refusal_at_maximum(f"{MAX_SESSIONS_PER_KEY:,}")
        if key is not None and key.max_requests is not None and key.max_requests < most:
            most, refusal = key.max_requests, LIVE_SESSIONS.refusal(f"{key.max_requests:,}")
        if self._counts[name] >= most:
            raise Overloaded(f"{self._counts[name]:,} live connections are open", refusal, retry_after=1)
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
        """Call the `stop` function of every open connection, because the server drains."""
        for stop in tuple(self._stops):
            stop()
