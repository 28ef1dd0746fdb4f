"""Wait for a future on behalf of a request. The wait also ends when a time limit passes or the request ends."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from server.errors import ClientGone
from server.ipc.client.call import Call, error_of
from server.ipc.wire.time_limits import LimitTimer, TimeLimit, TimeLimits

Result = TypeVar("Result")


class Waiting(Generic[Result]):
    """Waits for a future, and cancels it if the wait ends without a result.

    call: the request; if it ends, the wait ends. None for a wait without a request.
    limits: time limits of the wait.
    need: what the request waits for, as the clause that completes an error, such as "earlier recordings were read".
    """

    def __init__(self, future: asyncio.Future[Result], call: Call | None, limits: TimeLimits, need: str) -> None:
        self._future = future
        self._call = call
        self._need = need
        self._timer = LimitTimer(limits, self._expire)
        self._passed: TimeLimit | None = None
        self._ended = False

    async def result(self) -> Result:
        """Wait for the future, and return its result.

        Raises:
            DeadlineExceeded, EngineFailure: a time limit has passed.
            ClientGone: the client has disconnected, or the call has ended.
        """
        call = self._call
        if call is not None:
            call.check_open()
            call.on_close(self._end)
        self._timer.start()
        try:
            return await self._future
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._ended or (task is not None and task.cancelling()):
                raise
            if self._passed is None or (call is not None and call.gone):
                raise ClientGone("the client closed the connection") from None
            raise error_of(self._passed.code, f"{self._passed.message}; {self._need}") from None
        finally:
            self._timer.stop()
            if call is not None:
                call.off_close(self._end)

    def _expire(self, limit: TimeLimit) -> None:
        self._passed = limit
        self._end()

    def _end(self) -> None:
        if not self._future.done():
            self._ended = True
            self._future.cancel()
