"""uvicorn's HTTP/1.1 protocol with limits for request headers, and with direct writes of response bodies.

Direct writes are the fast path of event streams (docs/decisions/0024-events-past-the-event-loop.md). They use an
internal method of uvicorn, so `choose_protocol` tests them when the server starts.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import weakref
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar

import httptools
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from server.api.bodies.sse import DIRECT_CONNECTION
from server.api.connection.lingering import LingeringTransport
from server.api.connection.malformed import refusal
from server.api.connection.portions import HeldFlow, Portions
from server.api.connection.upgrades import head_without_upgrade, is_handshake
from server.api.entry.door import OVER_CONNECTION_LIMIT
from server.errors import HeadersTooLarge, MalformedHttp, NotReady, RequestError

log = logging.getLogger("triptych.protocol")

HEADER_SECONDS = 10.0
MAX_HEADER_BYTES = 64 << 10
MAX_HEADERS = 1000
"""Most headers of a request. Each check that looks for one header reads all of them."""
MAX_PIPELINED = 64
"""Most requests that wait on a connection for the answer to an earlier one. The connection ends after their answers.

RFC 9112, section 9.3.2: a client sends the requests without an answer again."""
PORTION_BYTES = 16 << 10
"""Received bytes that are parsed at once. They hold the body of most requests, and take 1.5 ms at most."""
MAX_JOINED_BYTES = 64 << 10
"""Largest body that is written together with the head of its response, which copies it."""
SELF_TEST_SECONDS = 10.0

SOCKET_PATHS = frozenset({b"/v1/realtime"})
"""Paths that take WebSocket connections. Requests to other paths are handled as if they had no header `Upgrade`."""
_MALFORMED = MalformedHttp("the bytes are no valid HTTP request")
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


class _PipelineFull(Exception):
    """More than `MAX_PIPELINED` requests wait on the connection. Ends the parsing."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """HTTP/1.1 protocol that limits connections, waiting requests, and the time and size of request line and headers.

    Headers must arrive within `HEADER_SECONDS`, also on a new connection that sends nothing, and within
    `MAX_HEADER_BYTES` and `MAX_HEADERS`; otherwise the connection is closed.

    max_connections: maximum number of open connections. Requests on a connection above it are marked in the scope, and
        the middleware refuses them. The connection is closed after that answer.
    """

    max_connections: ClassVar[int] = sys.maxsize

    @staticmethod
    def receive(scope: Scope, body: bytearray | None, start: Callable[[], None]) -> Response | None:
        """Start the application for a request, or return a response to send instead. `Arrivals` replaces this function.

        scope: ASGI scope of the request.
        body: the complete body, or None if parts of it are missing.
        start: starts the application. It must be called, now or soon, if None is returned.
        """
        start()
        return None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_over_limit = False
        self._header_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._in_headers = True
        self._is_parsing = False
        self._ignores_upgrade = False
        self._unstarted: tuple[RequestResponseCycle, Any] | None = None
        self._portions: Portions

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._is_over_limit = len(self.connections) > self.max_connections
        if self._is_over_limit:
            self.transport = LingeringTransport(self.transport)  # type: ignore[assignment]
        self.flow = flow = HeldFlow(self.transport)
        self._portions = Portions(PORTION_BYTES, self._receive, flow, lambda: True, self.transport.abort)
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._portions.end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._portions.add(data)

    def _receive(self, data: memoryview) -> None:
        """Parse a portion of the received bytes, and start the request that it completes or begins.

        Bytes after the last answer of a connection are dropped, because nothing can answer them.
        """
        if self.transport.is_closing():
            self._portions.end()
            return
        if self._in_headers:
            self._header_bytes += len(data)
        self._is_parsing = True
        self._unset_keepalive_if_required()
        self._feed(data)
        self._is_parsing = False
        if self._unstarted is not None:
            (cycle, app), self._unstarted = self._unstarted, None
            self._start_asgi_task(cycle, app)
        if self._in_headers and self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            limit = f"{MAX_HEADER_BYTES >> 10} KiB"
            self._refuse(HeadersTooLarge(f"the request line and the headers have more than {limit}"))

    def _feed(self, data: memoryview) -> None:
        """Parse received bytes. If the server ignores the header `Upgrade` of a request, parse it again without it.

        Otherwise the parser would treat the body of such a request as bytes of the other protocol. Java's client, for
        example, asks for HTTP/2 in the first request of each connection.
        """
        waiting = [data]
        while waiting:
            data = waiting.pop()
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserError as error:
                self._end_parsing(error.__context__)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if not self._ignores_upgrade:
                    self._portions.end()
                    self.handle_websocket_upgrade()
                    return
                self._ignores_upgrade = False
                head = head_without_upgrade(self.parser, self.url, self.headers)
                waiting += [data[upgrade.args[0] :], memoryview(head)]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def _end_parsing(self, cause: BaseException | None) -> None:
        """Refuse bytes that were not parsed to their end. cause: exception of a method that the parser called."""
        if isinstance(cause, _PipelineFull):
            self.pipeline[0][0].keep_alive = False  # the newest one
            self._portions.end()
        elif isinstance(cause, MemoryError):
            self._refuse(NotReady("the server has no memory left for this request", retry_after=2))
        else:
            self._refuse(cause if isinstance(cause, HeadersTooLarge) else _MALFORMED)

    def _refuse(self, error: RequestError) -> None:
        """Close the connection after bytes that cannot be parsed, and send the error if no answer has begun.

        The error then also replaces the answer to a complete request before these bytes. An answer that has begun is
        cut off, and the error is not sent. It is not sent either if several requests wait.
        """
        cycle = self.cycle
        is_answering = cycle is not None and cycle.response_started and not cycle.response_complete
        if not is_answering and not self.pipeline:
            self.transport.write(refusal(error, self.client))
        self.transport.close()
        self._portions.end()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _PipelineFull
        super().on_message_begin()
        if self._header_timer is None:
            self._start_header_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers (RFC 9110, section 6.5.1) would be read as headers that a proxy has seen and checked.
        if self._in_headers:
            if len(self.headers) == MAX_HEADERS:
                raise HeadersTooLarge(f"the request has more than {MAX_HEADERS:,} headers")
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.scope["method"] = self.parser.get_method().decode("ascii")
        self._ignores_upgrade = (
            self.parser.should_upgrade() and self._get_upgrade() is not None and not self._should_upgrade()
        )
        if self._ignores_upgrade:
            return
        self._stop_header_timer()
        self._in_headers = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._ignores_upgrade:
            super().on_message_complete()

    def _should_upgrade(self) -> bool:
        if self._is_over_limit or self.scope["method"] != "GET" or self.url.partition(b"?")[0] not in SOCKET_PATHS:
            return False
        return super()._should_upgrade() and is_handshake(self.headers)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._is_parsing:
            # A body that has arrived with the headers may decide whether the request is refused.
            self._unstarted = cycle, app
            return
        cycle.scope[OVER_CONNECTION_LIMIT] = self.max_connections if self._is_over_limit else 0  # type: ignore[literal-required]
        body = None if cycle.more_body else cycle.body
        answer = self.receive(cycle.scope, body, partial(self._start, cycle, app))  # type: ignore[arg-type]
        if answer is not None:
            self._answer(cycle, answer)

    def _start(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Hand a request to the application. cycle: the request and its response; app: the ASGI application."""
        super()._start_asgi_task(cycle, partial(_run, cycle, app))

    def _answer(self, cycle: RequestResponseCycle, response: Response) -> None:
        """Send a complete response to a request without starting the application. Its further body is discarded."""
        keep_alive = cycle.keep_alive and not self._is_over_limit
        headers = [*cycle.default_headers, *response.raw_headers]
        if not keep_alive:
            headers.append((b"connection", b"close"))
        phrase = _PHRASES.get(response.status_code, b"")
        head = b"HTTP/1.1 %d %b\r\n%b\r\n" % (
            response.status_code,
            phrase,
            b"".join(b"%b: %b\r\n" % header for header in headers),
        )
        cycle.response_started = cycle.response_complete = True
        self.transport.write(head + bytes(response.body))
        if not keep_alive:
            self.transport.close()
        cycle.on_response()

    def _start_header_timer(self) -> None:
        self._in_headers = True
        self._header_bytes = 0
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


def _has_length(start: Message) -> bool:
    """Whether the head of a response announces the length of the body."""
    return any(name.lower() == b"content-length" for name, _ in start.get("headers", ()))


async def _run(cycle: RequestResponseCycle, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the application for one request. cycle: the request and its response, which must not refer to `send`."""
    if scope["http_version"] == "1.0":
        send = _send_without_chunks(cycle, send)
    await app(scope, receive, _send_head_with_body(cycle, send))


class _HeldHead(bytearray):
    """Bytes of the head of a response that are not written yet. Stands in for a transport."""

    write = bytearray.extend


def _send_head_with_body(cycle: RequestResponseCycle, send: Send) -> Send:
    """ASGI `send` that writes the head of a response together with the first part of its body, if its length is known.

    Two writes would be two calls of the system, each of which wakes the client. A head without `Content-Length` is
    written at once, because the body may come much later.
    """
    head = _HeldHead()

    async def send_together(message: Message) -> None:
        if message["type"] == "http.response.start":
            if cycle.scope["method"] != "HEAD" and _has_length(message):
                transport, cycle.transport = cycle.transport, head  # type: ignore[assignment]
                try:
                    await send(message)
                finally:
                    cycle.transport = transport
                return
        elif head:
            start, body = bytes(head), message.get("body", b"")
            head.clear()
            if len(body) <= MAX_JOINED_BYTES:
                # uvicorn compares the length of a body with the length that was announced.
                cycle.expected_content_length += len(start)
                message = {**message, "body": start + body}
            else:
                cycle.transport.write(start)
        await send(message)

    return send_together


def _send_without_chunks(cycle: RequestResponseCycle, send: Send) -> Send:
    """ASGI `send` for HTTP/1.0. It has no chunked encoding, so closing the connection ends a body of unknown length."""
    is_open_ended = False

    async def send_open_ended(message: Message) -> None:
        nonlocal is_open_ended
        if message["type"] == "http.response.start":
            is_open_ended = not _has_length(message)
            if is_open_ended:
                cycle.chunked_encoding = cycle.keep_alive = False
        elif is_open_ended:
            # uvicorn compares the length of a body with the length that was announced.
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return send_open_ended


class UvicornConnection:
    """Writes chunks of a response body to the connection of one request, without ASGI.

    Produces the same bytes as uvicorn's `send` (chunked encoding, RFC 9112, section 7.1). Through ASGI, each chunk
    would pass five wrappers and a timer. This costs more than the chunk itself, and each stream sends one per step.

    cycle: the request and its response. Kept as a weak reference, because its scope refers to this object: a cycle of
        references would keep the request in memory until the garbage collector runs.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = weakref.ref(cycle)

    def write(self, body: bytes) -> bool:
        """Write a chunk of at least one byte and return True, or write nothing and return False.

        Returns False before the headers of the response, after its end, after the client has disconnected, and while
        the send buffer is full.
        """
        cycle = self._cycle()
        if cycle is None or not cycle.chunked_encoding:
            return False
        if cycle.flow.write_paused or cycle.disconnected or cycle.response_complete:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True


class DirectHttpProtocol(LimitedHttpProtocol):
    """HTTP/1.1 protocol that also puts a `UvicornConnection` for direct writes into the scope of each request."""

    def _start(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope[DIRECT_CONNECTION] = UvicornConnection(cycle)  # type: ignore[literal-required]
        super()._start(cycle, app)


async def choose_protocol(candidate: type[LimitedHttpProtocol] = DirectHttpProtocol) -> type[LimitedHttpProtocol]:
    """Return `candidate` if its direct writes work with the installed uvicorn, otherwise `LimitedHttpProtocol`."""
    try:
        async with asyncio.timeout(SELF_TEST_SECONDS):
            if await _direct_writes_work(candidate):
                return candidate
        reason = "the bytes on the connection are wrong"
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    log.warning("direct writes do not work with uvicorn %s (%s); events use ASGI", uvicorn.__version__, reason)
    return LimitedHttpProtocol


async def _direct_writes_work(protocol_class: type[LimitedHttpProtocol]) -> bool:
    """Whether direct writes send the right bytes: runs one request in memory with direct and ASGI writes in turn."""
    accepted: list[bool] = []
    transport = _MemoryTransport()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope.get(DIRECT_CONNECTION, _NoConnection())
        accepted.append(connection.write(b"before the head"))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in (b"1", b"2"):
            accepted.append(connection.write(b"direct " + number))
            await send({"type": "http.response.body", "body": b"asgi " + number, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        accepted.append(connection.write(b"after the end"))
        transport.close()

    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    protocol = protocol_class(config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(transport)
    try:
        protocol.data_received(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await transport.closed.wait()
    finally:
        protocol.connection_lost(None)
    body = bytes(transport.written).partition(b"\r\n\r\n")[2]
    expected = b"8\r\ndirect 1\r\n6\r\nasgi 1\r\n8\r\ndirect 2\r\n6\r\nasgi 2\r\n0\r\n\r\n"
    return body == expected and accepted == [False, True, True, False]


class _NoConnection:
    """A connection that accepts no writes. Stands in for a missing connection in the scope."""

    def write(self, body: bytes) -> bool:
        return False


class _MemoryTransport(asyncio.Transport):
    """Transport that collects written bytes in memory, for the self-test."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = asyncio.Event()
        self.written = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def close(self) -> None:
        self.closed.set()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass
