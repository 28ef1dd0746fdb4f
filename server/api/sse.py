"""Server-sent events as a small ASGI response. Source: WHATWG HTML, section 9.2, and API.md section 2.

One object a line, ASCII only: U+2028 and its like are line ends to some readers. Comments only after silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors import ClientGone

PING_SECONDS = 15.0
STALL_SECONDS = 30.0
"""A reader that takes nothing for so long is cut off."""

_NON_ASCII = re.compile(r"[^\x00-\x7e]+")

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


def _escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def dumps(value: Any) -> bytes:
    """Compact JSON, all ASCII: everything else is escaped as UTF-16 code units."""
    data = orjson.dumps(value)
    if data.isascii() and b"\x7f" not in data:
        return data
    return _NON_ASCII.sub(_escape, data.decode()).encode("ascii")


def frame(name: str, value: Any) -> bytes:
    """One event, ended by an empty line."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), dumps(value))


class DirectConnection(Protocol):
    """A way past ASGI for the body of one answer, whose head has been sent."""

    def write(self, body: bytes) -> bool:
        """Send now and return True; return False, with nothing sent, where one would have to wait."""


DIRECT_CONNECTION = "triptych.direct_connection"
"""Where a request's scope has it, on connections that have one."""


class Writer:
    """Where the frames of a stream go. `write` never waits, `send` does."""

    def __init__(self, send: Send, connection: DirectConnection | None) -> None:
        self.last_sent = time.monotonic()
        self._send = send
        self._connection = connection
        self._kept: list[bytes] = []

    def write(self, body: bytes) -> bool:
        """Send if that can be done at once. If not, it is kept and False returned: `send` before writing more."""
        if self._connection is not None and not self._kept and self._connection.write(body):
            self.last_sent = time.monotonic()
            return True
        self._kept.append(body)
        return False

    async def send(self, body: bytes = b"") -> None:
        """Send what was kept, then this. Raises TimeoutError for a reader that has stopped reading."""
        body = b"".join([*self._kept, body])
        self._kept.clear()
        if body:
            await _within(self._send({"type": "http.response.body", "body": body, "more_body": True}))
            self.last_sent = time.monotonic()


class EventStream(Response):
    """Sends the frames that `frames` writes; calls `leave` at once when the client goes away, so that `frames` ends.

    `frames` handles its own failures: an exception out of it closes the connection without any further event.
    """

    def __init__(
        self,
        frames: Callable[[Writer], Awaitable[None]],
        leave: Callable[[], None],
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._frames = frames
        self._leave = leave
        self._ping_seconds = ping_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = Writer(send, scope.get(DIRECT_CONNECTION))

        async def ping() -> None:
            while True:
                idle = time.monotonic() - writer.last_sent
                if idle >= self._ping_seconds:
                    await writer.send(b": ping\n\n")
                else:
                    await asyncio.sleep(self._ping_seconds - idle)

        helpers: list[asyncio.Task[None]] = []
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            helpers = [asyncio.create_task(watch_disconnect(receive, self._leave)), asyncio.create_task(ping())]
            await self._frames(writer)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (ClientGone, TimeoutError):
            return
        finally:
            self._leave()
            for helper in helpers:
                helper.cancel()
                with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                    await helper


async def _within(sending: Awaitable[None]) -> None:
    """Wait for a send, but not for a reader that has stopped reading."""
    async with asyncio.timeout(STALL_SECONDS):
        await sending


async def watch_disconnect(receive: Receive, leave: Callable[[], None]) -> None:
    """Call `leave` when the client has closed the connection. The request's body must have been read."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            leave()
            return
