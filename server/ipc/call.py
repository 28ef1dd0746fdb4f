"""A `Call` is all sequences of one HTTP request. Knows messages and the event loop, not HTTP or text.

It hears of every event of its sequences, and whatever of it is unfinished when it closes is aborted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from server.errors import ClientGone
from server.ipc.messages import (
    Encoded,
    Failed,
    FailureCode,
    Finished,
    PromptScored,
    Tokens,
)

DEADLINE_SLACK_SECONDS = 1.0
"""The worker enforces deadlines; this long after one, a worker that did not is no longer waited for."""

Event = PromptScored | Tokens | Finished | Encoded | Failed
Take = Callable[[list[tuple[int, Event]]], bool]
"""Takes news of a call, and says whether it can take more at once."""


class Client(Protocol):
    """Whom a call tells what becomes of its sequences, by their ids on the wire."""

    def abort(self, request_id: int) -> None: ...

    def cancelled(self, request_id: int) -> None: ...

    def completed(self, request_id: int) -> None: ...


class Call:
    """The sequences of one HTTP request. Leave the `with` block to drop what is unfinished.

    Read what comes with `events`, or let `forward` bring it, which costs no turn of the event loop.
    """

    def __init__(self, client: Client, ids: list[int], deadline: float | None) -> None:
        self.started = time.monotonic()
        self._client = client
        self._ids = ids
        self._open = set(ids)
        self._events: list[tuple[int, Event]] = []
        self._take: Take | None = None
        self._wake: asyncio.Future[bool] | None = None
        self._gone = False
        self._timer: asyncio.TimerHandle | None = None
        if deadline is not None:
            delay = max(0.0, deadline - self.started) + DEADLINE_SLACK_SECONDS
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def __enter__(self) -> Call:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def events(self) -> list[tuple[int, Event]]:
        """Everything new since the last time, as (index of the sequence, event); empty when all sequences have ended.

        A reader that is slow gets more at once. Raises ClientGone after `leave`.
        """
        while not self._events and self._open and not self._gone:
            await self._wait()
        return self._news()

    async def forward(self, take: Take) -> bool:
        """Hand what is new to `take`, and whatever follows in the very call that brings it.

        Returns True once `take` has returned False, and False when all sequences have ended. Raises ClientGone after
        `leave`, and what `take` raises.
        """
        while True:
            events = self._news()
            if events:
                if not take(events):
                    return True
            elif not self._open:
                return False
            else:
                self._take = take
                try:
                    if not await self._wait():
                        return True
                finally:
                    self._take = None

    def deliver(self) -> None:
        """What was put goes to the one who waits for it; it is kept while nobody does."""
        if self._wake is None or self._wake.done():
            return
        if self._take is None or not self._events or self._gone:
            self._wake.set_result(True)
            return
        try:
            more = self._take(self._news())
        except Exception as error:
            self._wake.set_exception(error)
            return
        if not (more and self._open):
            self._wake.set_result(more)

    def stop(self, index: int) -> None:
        """No more of one sequence: its answer is complete for us (a stop string was seen)."""
        self._client.completed(self._ids[index])
        self._drop(self._ids[index])

    def leave(self) -> None:
        """The client is gone: abort everything and let the reader of `events` know."""
        self._gone = True
        for request_id in list(self._open):
            self._client.cancelled(request_id)
        self.close()
        self.deliver()

    def close(self) -> None:
        """Abort what is unfinished. Harmless when all is finished, and harmless twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for request_id in list(self._open):
            self._drop(request_id)

    def fail(self, code: FailureCode, message: str) -> None:
        """End every open sequence with a failure made on this side of the wall."""
        for index, request_id in enumerate(self._ids):
            if request_id in self._open:
                self._drop(request_id)
                self.put(index, Failed(request_id, code, message))
        self.deliver()

    def put(self, index: int, event: Event) -> None:
        self._events.append((index, event))

    def ended(self, request_id: int) -> None:
        self._open.discard(request_id)

    def _drop(self, request_id: int) -> None:
        if request_id in self._open:
            self._open.discard(request_id)
            self._client.abort(request_id)

    def _expire(self) -> None:
        self.fail("timeout", "the deadline passed")

    def _news(self) -> list[tuple[int, Event]]:
        if self._gone:
            raise ClientGone("the client closed the connection")
        events, self._events = self._events, []
        return events

    async def _wait(self) -> bool:
        """Until there is news, or the end; False when there is more than `forward`'s taker can take."""
        self._wake = asyncio.get_running_loop().create_future()
        try:
            return await self._wake
        finally:
            self._wake = None
