"""uvicorn's HTTP/1.1 protocol with what it lacks: a deadline and a size limit for headers, a short way for bodies."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from server.api.sse import CHANNEL

HEADER_SECONDS = 10.0
MAX_HEADER_BYTES = 64 << 10

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Channel:
    """Writes pieces of a chunked body to the connection (RFC 9112, section 7.1), as the cycle's `send` would.

    A frame through ASGI passes five wrappers and a timer; with a step's frames for many streams that is most of the
    time that they take.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def write(self, body: bytes) -> bool:
        """Write a piece that is not empty, if the head has been sent, the client is there and takes what it gets."""
        cycle = self._cycle
        if not cycle.chunked_encoding or cycle.flow.write_paused or cycle.disconnected or cycle.response_complete:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True


class Protocol(HttpToolsProtocol):
    """Closes a connection whose request line and headers take too long or are too large, idle ones included."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._in_headers = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._header_timer is None:
            self._await_headers()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._in_headers = False
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope[CHANNEL] = Channel(cycle)  # type: ignore[literal-required]
        super()._start_asgi_task(cycle, app)

    def _await_headers(self) -> None:
        self._in_headers = True
        self._header_bytes = 0
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
