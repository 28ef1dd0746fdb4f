"""Server-sent events as a small ASGI response. Source: WHATWG HTML, section 9.2, and API.md section 2.

One object a line, ASCII only: U+2028 and its like are line ends to some readers. Comments only after silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

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


class EventStream(Response):
    """Sends frames as they come; calls `leave` at once when the client goes away, so that `frames` ends.

    `frames` handles its own failures: an exception out of it closes the connection without any further event.
    """

    def __init__(
        self, frames: AsyncGenerator[bytes, None], leave: Callable[[], None], ping_seconds: float = PING_SECONDS
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._frames = frames
        self._leave = leave
        self._ping_seconds = ping_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        last_sent = loop.time()

        async def push(body: bytes) -> None:
            nonlocal last_sent
            await _within(send({"type": "http.response.body", "body": body, "more_body": True}))
            last_sent = loop.time()

        async def ping() -> None:
            while True:
                idle = loop.time() - last_sent
                if idle >= self._ping_seconds:
                    await push(b": ping\n\n")
                else:
                    await asyncio.sleep(self._ping_seconds - idle)

        helpers: list[asyncio.Task[None]] = []
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            helpers = [asyncio.create_task(watch_disconnect(receive, self._leave)), asyncio.create_task(ping())]
            async for body in self._frames:
                await push(body)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (ClientGone, TimeoutError):
            return
        finally:
            self._leave()
            await self._frames.aclose()
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
