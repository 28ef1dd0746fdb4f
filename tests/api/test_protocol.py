"""The short way of a body over a real connection: the same bytes as ASGI's, and no waiting for a slow reader."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from server.api.protocol import DirectHttpProtocol, LimitedHttpProtocol, choose_protocol
from server.api.sse import DIRECT_CONNECTION, EventStream, Writer

PIECE = b"data: " + b"x" * 4000 + b"\n\n"


async def ask(app: Callable[..., Awaitable[None]], read: Callable[[asyncio.StreamReader], Awaitable[bytes]]) -> bytes:
    """One request to an app behind our protocol; `read` takes the answer from the connection."""
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


def unchunked(answer: bytes) -> bytes:
    """The body of a chunked answer that is complete."""
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


async def test_both_ways_write_the_same_body() -> None:
    ways: list[bool] = []

    async def frames(writer: Writer) -> None:
        for number in range(4):
            ways.append(writer.write(b"data: %d\n\n" % number))
            await writer.send(b"data: %d again\n\n" % number)

    async def app(scope: dict, receive: Callable, send: Callable) -> None:
        assert not scope[DIRECT_CONNECTION].write(b"too early"), "before the head nothing may be written"
        await EventStream(frames, lambda: None)(scope, receive, send)
        assert not scope[DIRECT_CONNECTION].write(b"too late")

    answer = await ask(app, lambda reader: reader.read())
    assert ways == [True] * 4
    assert unchunked(answer) == b"".join(b"data: %d\n\ndata: %d again\n\n" % (n, n) for n in range(4))


async def test_a_reader_that_is_behind_is_not_written_past() -> None:
    refused, caught_up = 0, asyncio.Event()

    async def frames(writer: Writer) -> None:
        nonlocal refused
        for _ in range(5000):
            if not writer.write(PIECE):
                refused += 1
                caught_up.set()
                await writer.send()
        caught_up.set()

    async def read(reader: asyncio.StreamReader) -> bytes:
        await caught_up.wait()
        return await reader.read()

    answer = await ask(EventStream(frames, lambda: None), read)
    assert refused and unchunked(answer) == PIECE * 5000


async def test_direct_writes_work_with_the_installed_uvicorn(caplog: pytest.LogCaptureFixture) -> None:
    assert await choose_protocol() is DirectHttpProtocol
    assert caplog.text == ""


class WithoutConnection(DirectHttpProtocol):
    """As if uvicorn had renamed the method that `DirectHttpProtocol` overrides."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        LimitedHttpProtocol._start_asgi_task(self, cycle, app)


class WrongBytes(DirectHttpProtocol):
    """As if uvicorn kept the connection of a request elsewhere."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope[DIRECT_CONNECTION] = SimpleNamespace(write=lambda body: True)
        LimitedHttpProtocol._start_asgi_task(self, cycle, app)


class Fault(DirectHttpProtocol):
    """As if the signature of a method had changed."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        raise TypeError("unexpected argument")


@pytest.mark.parametrize("protocol", [WithoutConnection, WrongBytes, Fault])
async def test_without_working_direct_writes_events_use_asgi(
    protocol: type[DirectHttpProtocol], caplog: pytest.LogCaptureFixture
) -> None:
    assert await choose_protocol(protocol) is LimitedHttpProtocol
    (record,) = (record for record in caplog.records if record.name == "triptych.protocol")
    assert record.levelname == "WARNING" and "events use ASGI" in record.message
