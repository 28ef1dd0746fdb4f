"""Spread the work of large requests over several iterations of the event loop.

In one iteration, the loop runs everything that is ready; it reads, sends and fires timers only between iterations. If
sixteen large requests are ready in one iteration, the loop stops for as long as all their work takes. A request
therefore awaits `next_iteration` before each piece of work that may take milliseconds. If the current iteration has
taken little time so far, the request continues at once.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from weakref import WeakKeyDictionary

ITERATION_SECONDS = 0.004
"""Duration of an iteration after which no further piece of work begins in it. A piece is not interrupted."""
_AT_ONCE = 8
"""Number of waiting requests that are woken in each iteration."""


async def next_iteration() -> None:
    """Wait until an iteration of the event loop has time for work.

    Returns at once if the current iteration has taken less than `ITERATION_SECONDS` and no other request waits.
    """
    await _iterations().wait()


def has_time() -> bool:
    """Whether a further piece of work may begin now: the current iteration is short, and no other request waits.

    For work that is not in a task. Otherwise use `next_iteration`.
    """
    return _iterations().has_time()


def _iterations() -> _Iterations:
    """The iterations of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _by_loop.get(loop)
    if found is None:
        found = _by_loop[loop] = _Iterations(loop)
    return found


class _Iterations:
    """Measures the iterations of one event loop. An iteration begins with the first call of `wait` in it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._began: float | None = None
        self._ends = False
        self._waiting: dict[object, asyncio.Future[None]] = {}
        """Waiting requests, in the order of their arrival.

        A request that is woken when the iteration is already long keeps its place and waits again.
        """

    def has_time(self) -> bool:
        return not self._waiting and not self._is_long()

    async def wait(self) -> None:
        if self.has_time():
            return
        ticket = object()
        try:
            while True:
                self._waiting[ticket] = self._loop.create_future()
                self._end_soon()
                await self._waiting[ticket]
                if not self._is_long():
                    return
        finally:
            del self._waiting[ticket]

    def _is_long(self) -> bool:
        """Whether the current iteration has taken `ITERATION_SECONDS` or more."""
        now = self._loop.time()
        if self._began is None:
            self._began = now
            self._end_soon()
        return now - self._began >= ITERATION_SECONDS

    def _end_soon(self) -> None:
        if not self._ends:
            self._ends = True
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        """End the current iteration, and wake the requests that have waited longest, for the next iteration."""
        self._began, self._ends = None, False
        for future in islice(self._waiting.values(), _AT_ONCE):
            if not future.done():
                future.set_result(None)
        if self._waiting:
            self._end_soon()


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Iterations] = WeakKeyDictionary()
