"""Direct writes to a real connection: the same bytes as through ASGI, slow clients, and the self-test at the start."""

from __future__ import annotations

import asyncio
import gc
import re
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from server.api.bodies.sse import DIRECT_CONNECTION, EventStream, EventWriter
from server.api.connection.protocol import MAX_JOINED_BYTES, DirectHttpProtocol, LimitedHttpProtocol, choose_protocol

EVENT = b"data: " + b"x" * 4000 + b"\n\n"


async def request(
    app: Callable[..., Awaitable[None]], read: Callable[[asyncio.StreamReader], Awaitable[bytes]]
) -> bytes:
    """Send one request to `app` under DirectHttpProtocol and return what `read` reads from the connection."""
    config = uvicorn.Config(app, http=DirectHttpProtocol, ws="none", lifespan="off", log_config=None)
    config.load()
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        lambda: DirectHttpProtocol(config=config, server_state=server.server_state, app_state={}), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname()[:2], limit=1 << 16)
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return await read(reader)
    finally:
        writer.close()
        listener.close()


def decode_chunked(answer: bytes) -> bytes:
    """The body of a complete response in chunked encoding. Fails if the encoding is invalid or incomplete."""
    at, pieces = answer.index(b"\r\n\r\n") + 4, []
    while True:
        end = answer.index(b"\r\n", at)
        assert re.fullmatch(rb"[0-9a-f]+", answer[at:end])
        size, at = int(answer[at:end], 16), end + 2
        pieces.append(answer[at : at + size])
        assert answer[at + size : at + size + 2] == b"\r\n"
        at += size + 2
        if not size:
            assert at == len(answer)
            return b"".join(pieces)


async def test_direct_writes_and_asgi_produce_the_same_bytes() -> None:
    accepted: list[bool] = []

    async def events(writer: EventWriter) -> AsyncGenerator[bytes, None]:
        for number in range(4):
            accepted.append(writer.write(b"data: %d\n\n" % number))
            yield b"data: %d again\n\n" % number

    async def app(scope: dict, receive: Callable, send: Callable) -> None:
        assert not scope[DIRECT_CONNECTION].write(b"before the head")
        await EventStream(events, lambda: None)(scope, receive, send)
        assert not scope[DIRECT_CONNECTION].write(b"after the end")

    answer = await request(app, lambda reader: reader.read())
    assert accepted == [True] * 4
    assert decode_chunked(answer) == b"".join(b"data: %d\n\ndata: %d again\n\n" % (n, n) for n in range(4))


async def test_direct_writes_stop_while_the_client_reads_slowly() -> None:
    refused, may_read = 0, asyncio.Event()

    async def events(writer: EventWriter) -> AsyncGenerator[bytes, None]:
        nonlocal refused
        for _ in range(5000):
            if not writer.write(EVENT):
                refused += 1
                may_read.set()
                yield writer.take()
        may_read.set()

    async def read_late(reader: asyncio.StreamReader) -> bytes:
        await may_read.wait()
        return await reader.read()

    async def app(scope: dict, receive: Callable, send: Callable) -> None:
        await EventStream(events, lambda: None)(scope, receive, send)

    answer = await request(app, read_late)
    assert refused and decode_chunked(answer) == EVENT * 5000


class Writes(asyncio.Transport):
    """Transport that keeps each write."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def close(self) -> None:
        self.closed.set()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def writes_of(
    app: Callable[..., Awaitable[None]], method: bytes = b"GET", version: bytes = b"1.1"
) -> list[bytes]:
    """Send one request to `app` and return the writes of the answer."""
    config = uvicorn.Config(app, http=DirectHttpProtocol, ws="none", lifespan="off", log_config=None)
    config.load()
    protocol = DirectHttpProtocol(config=config, server_state=uvicorn.Server(config).server_state, app_state={})
    transport = Writes()
    protocol.connection_made(transport)
    protocol.data_received(b"%b / HTTP/%b\r\nHost: x\r\nConnection: close\r\n\r\n" % (method, version))
    await transport.closed.wait()
    protocol.connection_lost(None)
    return transport.written


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_head_and_body_of_known_length_are_written_together(version: bytes) -> None:
    """One write wakes the client once. Heads of large answers, of streams and of `HEAD` are writes of their own."""
    for size in (0, 5, MAX_JOINED_BYTES, MAX_JOINED_BYTES + 1):
        *heads, last = await writes_of(PlainTextResponse("x" * size), version=version)
        head, _, body = b"".join([*heads, last]).partition(b"\r\n\r\n")
        assert body == b"x" * size and b"content-length: %d\r\n" % size in head + b"\r\n"
        assert len(heads) == (size > MAX_JOINED_BYTES)
    (head,) = [written for written in await writes_of(PlainTextResponse("xyz"), b"HEAD", version) if written]
    assert head.endswith(b"\r\n\r\n") and b"content-length: 3" in head

    async def stream(scope: dict, receive: Callable, send: Callable) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"late", "more_body": False})

    head, *rest = await writes_of(stream, version=version)
    assert head.endswith(b"\r\n\r\n") and b"late" in b"".join(rest)


async def test_a_length_that_the_body_does_not_have_ends_the_connection() -> None:
    async def app(scope: dict, receive: Callable, send: Callable) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"more than five", "more_body": False})

    assert b"more" not in b"".join(await writes_of(app))


async def test_a_request_is_freed_without_the_garbage_collector() -> None:
    """A finished request is freed by reference counting. Its scope holds the parsed body, which may be large."""
    kept: list[weakref.ref[_Kept]] = []

    async def app(scope: dict, receive: Callable, send: Callable) -> None:
        scope["kept"] = body = _Kept()
        kept.append(weakref.ref(body))
        await PlainTextResponse("done")(scope, receive, send)

    gc.disable()
    try:
        await request(app, lambda reader: reader.read())
        for _ in range(100):
            await asyncio.sleep(0)
        assert [reference() for reference in kept] == [None]
    finally:
        gc.enable()


class _Kept:
    """An object that the test puts into the scope of a request to see when it is freed."""


async def test_direct_writes_work_with_the_installed_uvicorn(caplog: pytest.LogCaptureFixture) -> None:
    assert await choose_protocol() is DirectHttpProtocol
    assert caplog.text == ""


class WithoutConnection(DirectHttpProtocol):
    """A protocol that behaves as if uvicorn had renamed the method that our protocols override."""

    def _start(self, cycle: RequestResponseCycle, app: Any) -> None:
        LimitedHttpProtocol._start(self, cycle, app)


class WrongBytes(DirectHttpProtocol):
    """A protocol that drops all direct writes, as if uvicorn kept the connection in another attribute."""

    def _start(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope[DIRECT_CONNECTION] = SimpleNamespace(write=lambda body: True)
        LimitedHttpProtocol._start(self, cycle, app)


class Fault(DirectHttpProtocol):
    """A protocol that raises an exception, as if uvicorn had changed the signature of a method."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        raise TypeError("unexpected argument")


@pytest.mark.parametrize("protocol", [WithoutConnection, WrongBytes, Fault])
async def test_without_working_direct_writes_events_use_asgi(
    protocol: type[DirectHttpProtocol], caplog: pytest.LogCaptureFixture
) -> None:
    assert await choose_protocol(protocol) is LimitedHttpProtocol
    (record,) = (record for record in caplog.records if record.name == "triptych.protocol")
    assert record.levelname == "WARNING" and "events use ASGI" in record.message
