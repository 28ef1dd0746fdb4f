"""Parse received bytes in portions, which share the time of the event loop with all other work.

One read from a connection may return 256 KiB. These can be ten thousand requests or forty thousand WebSocket frames,
and parsing them in one piece would stop the event loop for 0.4 s. Usually the bytes are few, or parts of one body;
they are then parsed at once. While bytes wait, nothing is read from the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

from server.system.loop_iterations import has_time, next_iteration


class HeldFlow(FlowControl):
    """Flow control of a connection whose reading can also be held by `Portions`, independent of uvicorn's pauses."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_held = False

    def hold(self, is_held: bool) -> None:
        """Stop reading, or allow it again. Reading goes on only if uvicorn has not paused it either."""
        if is_held == self._is_held:
            return
        self._is_held = is_held
        if is_held:
            self._transport.pause_reading()
        elif not self.read_paused:
            self._transport.resume_reading()

    def resume_reading(self) -> None:
        if self._is_held:
            self.read_paused = False
        else:
            super().resume_reading()


class HeldTransport:
    """Wrapper of a transport whose reading is controlled by a `HeldFlow`, for a protocol that pauses the transport.

    All other attributes are those of the wrapped transport.
    """

    def __init__(self, transport: asyncio.Transport, flow: HeldFlow) -> None:
        self._transport = transport
        self.pause_reading, self.resume_reading = flow.pause_reading, flow.resume_reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Portions:
    """The received bytes of one connection that are not parsed yet.

    portion_bytes: size of a portion. The first portion is parsed at once, the others when the event loop has time.
    feed: parses a portion.
    flow: stops reading while bytes wait.
    is_open: tells whether the protocol takes bytes now. When it takes bytes again, it calls `go_on`.
    abort: closes the connection after a fault in `feed`.
    """

    def __init__(
        self,
        portion_bytes: int,
        feed: Callable[[memoryview], None],
        flow: HeldFlow,
        is_open: Callable[[], bool],
        abort: Callable[[], None],
    ) -> None:
        self._size, self._feed, self._flow, self._is_open, self._abort = portion_bytes, feed, flow, is_open, abort
        self._waiting: deque[memoryview] = deque()
        self._task: asyncio.Task[None] | None = None
        self._has_ended = False

    def add(self, data: bytes) -> None:
        """Parse received bytes: the first portion at once, the others now or later, when the event loop has time."""
        if self._has_ended:
            return
        self._waiting.append(memoryview(data))
        if self._task is None:
            if self._is_open():
                self._feed_one()
            while self._waiting and self._is_open() and has_time():
                self._feed_one()
            self.go_on()

    def go_on(self) -> None:
        """Parse waiting bytes when the event loop has time, or read again if none wait. Called after a pause."""
        self._flow.hold(bool(self._waiting))
        if self._waiting and self._task is None and self._is_open():
            self._task = asyncio.create_task(self._feed_rest(), name="received bytes")

    def end(self) -> None:
        """Stop for good: bytes that are not parsed yet, and bytes received later, are dropped.

        Also drops the callbacks. They refer to the protocol, which refers to this object, and such a cycle would keep
        the last request in memory until the garbage collector runs.
        """
        self._has_ended = True
        self._waiting.clear()
        self._flow.hold(False)
        self._feed, self._is_open, self._abort = _nothing, lambda: False, _nothing

    def _feed_one(self) -> None:
        data = self._waiting.popleft()
        if len(data) > self._size:
            self._waiting.appendleft(data[self._size :])
        self._feed(data[: self._size])

    async def _feed_rest(self) -> None:
        try:
            while self._waiting and self._is_open():
                await next_iteration()
                if self._waiting and self._is_open():
                    self._feed_one()
        except Exception as error:
            context = {"message": "fault in the parser of a connection", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            self._abort()
            self.end()
        finally:
            self._task = None
        self.go_on()


def _nothing(*arguments: object) -> None:
    """A callback without an effect, which replaces a callback that is no longer needed."""
