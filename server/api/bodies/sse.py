"""Server-sent events: their bytes, and the response that streams them.

Each event is one JSON object on one line. The line is ASCII, because some clients treat U+2028 and similar characters
as line ends. Source: WHATWG HTML Living Standard, section 9.2. See docs/decisions/0002-server-sent-events.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import uvicorn
from sse_starlette.sse import AppStatus, EventSourceResponse
from starlette.types import Message, Receive, Scope, Send

from server.api.bodies.json_pieces import dump
from server.errors import ClientGone
from server.system.loop_iterations import next_iteration

PING_SECONDS = 15.0
"""Time without any event after which a comment is sent, so that proxies do not close the connection."""
STALL_SECONDS = 30.0
"""A client that reads nothing for this time is disconnected."""

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


@dataclass(frozen=True)
class StreamFormat:
    """Format of a streamed response: server-sent events, or lines of JSON.

    media_type: value of the header `Content-Type`.
    ping: bytes that clients skip, sent after `PING_SECONDS` without any event. Empty if the format has no comments.
    """

    media_type: str
    ping: bytes

    def failure(self, value: Any) -> bytes:
        """Bytes that report an error in a stream without events so far. value: the error in the dialect's format."""
        return frame("error", value) if self.ping else json_line(value)


SERVER_SENT_EVENTS = StreamFormat("text/event-stream; charset=utf-8", b": ping\n\n")
JSON_LINES = StreamFormat("application/x-ndjson", b"")

_NON_ASCII = re.compile(r"[^\x00-\x7e]+")

# sse_starlette replaces uvicorn's signal handler when it is imported, and cuts streams without an error event when the
# server drains. Draining belongs to server.api.lifecycle. Its debug log would contain prompts and answers.
AppStatus.enable_automatic_graceful_drain = False
uvicorn.Server.handle_exit = AppStatus.original_handler  # type: ignore[assignment, method-assign]
logging.getLogger("sse_starlette").setLevel(logging.WARNING)


def dumps(value: Any) -> bytes:
    """Compact JSON text in ASCII. Other characters are escaped as UTF-16 code units, such as `\\u00e9`."""
    data = dump(value)
    if data.isascii() and b"\x7f" not in data:
        return data
    return _NON_ASCII.sub(_escape, data.decode()).encode("ascii")


def _escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def frame(name: str, value: Any) -> bytes:
    """Bytes of one event with a name and a JSON value, including the empty line that ends the event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), dumps(value))


def data_frame(value: Any) -> bytes:
    """Bytes of one event with a JSON value and no name."""
    return b"data: %s\n\n" % dumps(value)


def json_line(value: Any) -> bytes:
    """Bytes of one line in a stream of JSON lines."""
    return dumps(value) + b"\n"


class DirectConnection(Protocol):
    """Connection of one request that accepts bytes of the response body without ASGI."""

    def write(self, body: bytes) -> bool:
        """Send `body` immediately and return True. Returns False and sends nothing if the caller would have to wait."""


DIRECT_CONNECTION = "triptych.direct_connection"
"""Key in the ASGI scope: the DirectConnection of the request. Absent if the ASGI server offers none."""


class EventWriter:
    """Sends events of one stream immediately if the connection allows it, and otherwise keeps them for `take`.

    connection: accepts direct writes; None if the ASGI server offers none.
    last_sent: time of the last byte sent, in seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        self.connection: DirectConnection | None = None
        self.last_sent = time.monotonic()
        self._kept: list[bytes] = []

    def write(self, body: bytes) -> bool:
        """Send `body` immediately and return True, or keep it and return False.

        After False, the caller passes the result of `take` to the response before it writes again.
        """
        if self.connection is not None and not self._kept and self.connection.write(body):
            self.last_sent = time.monotonic()
            return True
        self._kept.append(body)
        return False

    def take(self) -> bytes:
        """Remove and return the bytes that `write` has kept, in order."""
        kept = b"".join(self._kept)
        self._kept.clear()
        return kept


class EventStream(EventSourceResponse):
    """Response that streams events: with sse_starlette, or without it if the connection allows direct writes.

    events: generator of the stream's bytes. It receives the writer for direct writes and yields the bytes that
        ASGI has to send. An exception ends the connection without a further event, so the generator reports
        failures to the client.
    leave: called when the client disconnects, and again when the stream ends.
    format: media type and pings.
    ping_seconds: time without any event after which a comment is sent.
    headers: further headers of the response.
    """

    def __init__(
        self,
        events: Callable[[EventWriter], AsyncGenerator[bytes, None]],
        leave: Callable[[], None],
        format: StreamFormat = SERVER_SENT_EVENTS,
        ping_seconds: float = PING_SECONDS,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._writer = EventWriter()
        self._events = events(self._writer)
        self._leave = leave
        self._ping_bytes = format.ping
        self._ping_seconds = ping_seconds
        super().__init__(
            self._events,
            headers=HEADERS | {"content-type": format.media_type} | dict(headers or {}),
            ping=0,  # disable the pings of sse_starlette, which are sent even between frequent events
            sep="\n",
            send_timeout=STALL_SECONDS,
            client_close_handler_callable=self._on_disconnect,
        )
        del self.headers["connection"]  # HTTP/2 does not allow this header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def timed_send(message: Message) -> None:
            await send(message)
            self._writer.last_sent = time.monotonic()

        self._writer.connection = scope.get(DIRECT_CONNECTION)
        self.data_sender_callable = partial(self._send_pings, timed_send)
        run = super().__call__ if self._writer.connection is None else self._run_with_connection
        try:
            await run(scope, receive, timed_send)
        # OSError: the client reads nothing, or another ASGI server reports that it has disconnected.
        except (ClientGone, OSError):
            return
        finally:
            self._leave()

    async def _run_with_connection(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response without the task group of sse_starlette, which costs seven times as much per stream."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        helpers = [
            asyncio.create_task(watch_disconnect(receive, self._leave)),
            asyncio.create_task(self._send_pings(send)),
        ]
        try:
            async with contextlib.aclosing(self._events):
                async for body in self._events:
                    await _send_body(send, body)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _send_pings(self, send: Send) -> None:
        while self._ping_bytes:
            idle_seconds = time.monotonic() - self._writer.last_sent
            if idle_seconds < self._ping_seconds:
                await asyncio.sleep(self._ping_seconds - idle_seconds)
                continue
            await _send_body(send, self._ping_bytes)

    async def _on_disconnect(self, message: Message) -> None:
        self._leave()


async def _send_body(send: Send, body: bytes) -> None:
    """Send a part of the response body. Raises TimeoutError if the client reads nothing for `STALL_SECONDS`."""
    async with asyncio.timeout(STALL_SECONDS):
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def watch_disconnect(receive: Receive, leave: Callable[[], None]) -> None:
    """Wait until the client disconnects, and call `leave`. The request's body must have been read before.

    Dropping thousands of sequences takes milliseconds, and clients may disconnect together. They take turns.
    """
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            await next_iteration()
            leave()
            return
