"""Let only one request at a time do a step that takes much memory, in the order in which requests arrive at it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from server.ipc.client.call import Call
from server.ipc.wire.time_limits import TimeLimits
from server.operations.waiting import Waiting


class Turnstile:
    """A lock for requests: one request at a time is inside, in the order of arrival.

    A request waits at most as long as its time limits allow. While it waits, no memory is reserved for the step.
    """

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def turn(self, call: Call | None, limits: TimeLimits, need: str) -> AsyncIterator[None]:
        """Context manager: wait until no other request is inside, and let the next request in at the end.

        call: the request; if it ends, the wait ends. None for a wait without a request.
        limits: time limits of the wait.
        need: what the request waits for, as the clause that completes an error, such as "earlier recordings were read".
        Raises DeadlineExceeded or EngineFailure if a time limit passes, and ClientGone if the request ends.
        """
        if self._is_taken:
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(mine)
            try:
                await Waiting(mine, call, limits, need).result()
            except BaseException:
                if mine.done() and not mine.cancelled():
                    self._pass_on()
                raise
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """Let in the request that has waited longest. If no request waits, the next request to arrive does not wait."""
        while self._waiting:
            next_one = self._waiting.popleft()
            if not next_one.done():
                next_one.set_result(None)
                return
        self._is_taken = False
