"""Let one request at a time do a part of its work that takes much memory, in the order of their arrival."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from server.ipc.client.call import Call
from server.ipc.wire.time_limits import TimeLimits
from server.operations.waiting import Waiting


class Turnstile:
    """Lets one request at a time pass, in the order of arrival.

    A request waits as long as its time limits allow. While it waits, it holds no memory for the work.
    """

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def turn(self, call: Call | None, limits: TimeLimits, need: str) -> AsyncIterator[None]:
        """Context manager: wait until no other request is inside, and admit the next one at the end.

        call, limits, need: see `Waiting`. Raises the errors of `Waiting.result`.
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
        """Admit the request that has waited longest; without one, the next to arrive passes at once."""
        while self._waiting:
            next_one = self._waiting.popleft()
            if not next_one.done():
                next_one.set_result(None)
                return
        self._is_taken = False
