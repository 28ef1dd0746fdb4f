"""The bytes of server-sent events, and the response class that streams them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from types import SimpleNamespace

import pytest
import uvicorn

from server.api.bodies import sse
from server.api.bodies.sse import DIRECT_CONNECTION, EventStream, EventWriter, dumps, frame
from server.errors import ClientGone

SCOPE = {"type": "http", "method": "POST"}


class ClosedConnection:
    """A connection that refuses all direct writes, so that everything is sent through ASGI."""

    def write(self, body: bytes) -> bool:
        return False


@pytest.fixture(params=["asgi", "connection"])
def scope(request: pytest.FixtureRequest) -> dict:
    """The scope of a request, first without and then with a connection for direct writes. They use different code."""
    return SCOPE if request.param == "asgi" else SCOPE | {DIRECT_CONNECTION: ClosedConnection()}


def test_every_character_survives_as_ascii_on_one_line() -> None:
    for start in range(0, 0x110000, 0x400):
        text = "".join(chr(code) for code in range(start, start + 0x400) if not 0xD800 <= code <= 0xDFFF)
        data = dumps({"text": text})
        assert data.isascii() and not set(data) & {0x0A, 0x0D, 0x7F}
        assert json.loads(data) == {"text": text}


def test_bytes_of_an_event() -> None:
    assert frame("token", {"text": "a\nb\u2028é"}) == b'event: token\ndata: {"text":"a\\nb\\u2028\\u00e9"}\n\n'


class AsgiServer:
    """The ASGI server of one response.

    sent: messages that the response has sent. disconnected: event that the test sets when the client disconnects.
    blocked: whether sending a body never returns.
    """

    def __init__(self) -> None:
        self.sent: list[dict] = []
        self.disconnected = asyncio.Event()
        self.blocked = False

    async def receive(self) -> dict:
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict) -> None:
        self.sent.append(message)
        if self.blocked and message["type"] == "http.response.body":
            await asyncio.Event().wait()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def complete(self) -> bool:
        return self.sent[-1].get("more_body") is False


async def test_headers_are_those_of_the_contract(scope: dict) -> None:
    server = AsgiServer()

    async def events(writer: EventWriter) -> AsyncGenerator[bytes, None]:
        yield b"data: x\n\n"

    await EventStream(events, lambda: None)(scope, server.receive, server.send)
    assert dict(server.sent[0]["headers"]) == {
        b"content-type": b"text/event-stream; charset=utf-8",
        b"cache-control": b"no-cache",
        b"x-accel-buffering": b"no",
    }
    assert server.body == b"data: x\n\n" and server.complete


async def test_pings_only_after_silence(scope: dict) -> None:
    server, may_end = AsgiServer(), asyncio.Event()

    async def events(writer: EventWriter) -> AsyncGenerator[bytes, None]:
        for _ in range(5):
            yield b"data: x\n\n"
        await may_end.wait()
        yield b"data: y\n\n"

    response = EventStream(events, lambda: None, ping_seconds=0.02)
    sending = asyncio.create_task(response(scope, server.receive, server.send))
    while server.body.count(b": ping\n\n") < 2:
        await asyncio.sleep(0.001)
    may_end.set()
    await sending
    assert server.body.startswith(b"data: x\n\n" * 5 + b": ping\n\n") and server.complete
    assert server.body.endswith(b": ping\n\ndata: y\n\n")


async def test_a_disconnect_ends_the_events(scope: dict) -> None:
    server, left = AsgiServer(), asyncio.Event()

    async def events(writer: EventWriter) -> AsyncGenerator[bytes, None]:
        yield b"data: x\n\n"
        await left.wait()
        raise ClientGone("gone")

    sending = asyncio.create_task(EventStream(events, left.set)(scope, server.receive, server.send))
    while not server.body:
        await asyncio.sleep(0)
    server.disconnected.set()
    await sending
    assert left.is_set() and not server.complete


async def test_a_disconnect_before_the_first_event_is_noticed(scope: dict) -> None:
    server, left = AsgiServer(), asyncio.Event()
    server.disconnected.set()

    async def events(writer: EventWriter) -> AsyncGenerator[bytes, None]:
        await left.wait()
        raise ClientGone("gone")
        yield b""

    await EventStream(events, left.set)(scope, server.receive, server.send)
    assert left.is_set() and not server.complete


async def test_a_stalled_client_is_disconnected(scope: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "STALL_SECONDS", 0.02)
    server, left, closed = AsgiServer(), asyncio.Event(), asyncio.Event()
    server.blocked = True

    async def events(writer: EventWriter) -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: x\n\n"
        finally:
            closed.set()

    await EventStream(events, left.set)(scope, server.receive, server.send)
    assert left.is_set() and closed.is_set() and not server.complete


async def test_a_fault_closes_without_completing(scope: dict) -> None:
    server = AsgiServer()

    async def events(writer: EventWriter) -> AsyncGenerator[bytes, None]:
        yield b"data: x\n\n"
        raise RuntimeError("fault")

    with pytest.raises(RuntimeError):
        await EventStream(events, lambda: None)(scope, server.receive, server.send)
    assert not server.complete


class Connection:
    """A connection for direct writes. It refuses them while `open` is False. written: number of accepted writes."""

    def __init__(self, server: AsgiServer) -> None:
        self.server, self.open, self.written = server, True, 0

    def write(self, body: bytes) -> bool:
        if self.open:
            self.server.sent.append({"body": body})
            self.written += 1
        return self.open


async def test_direct_writes_and_asgi_keep_the_order() -> None:
    server = AsgiServer()
    connection = Connection(server)

    async def events(writer: EventWriter) -> AsyncGenerator[bytes, None]:
        assert writer.write(b"1") and writer.write(b"2")
        connection.open = False
        assert not writer.write(b"3")
        connection.open = True
        assert not writer.write(b"4"), "bytes that were kept go first"
        yield writer.take() + b"5"
        assert writer.write(b"6")

    await EventStream(events, lambda: None)(SCOPE | {DIRECT_CONNECTION: connection}, server.receive, server.send)
    assert server.body == b"123456" and server.complete and connection.written == 3


async def test_without_a_direct_connection_everything_goes_through_asgi() -> None:
    server = AsgiServer()

    async def events(writer: EventWriter) -> AsyncGenerator[bytes, None]:
        for number in (b"1", b"2", b"3"):
            if not writer.write(number):
                yield writer.take()

    await EventStream(events, lambda: None)(SCOPE, server.receive, server.send)
    assert server.body == b"123" and server.complete and len(server.sent) == 5


async def test_direct_writes_postpone_the_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    """No ping is sent between direct writes that follow each other within the ping interval. The clock is simulated."""
    server, now = AsgiServer(), 0.0
    monkeypatch.setattr(sse, "time", SimpleNamespace(monotonic=lambda: now))

    async def events(writer: EventWriter) -> AsyncGenerator[bytes, None]:
        nonlocal now
        for _ in range(10):
            await asyncio.sleep(0.01)
            now += 0.04
            if not writer.write(b"data: x\n\n"):
                yield writer.take()

    response = EventStream(events, lambda: None, ping_seconds=0.05)
    await response(SCOPE | {DIRECT_CONNECTION: Connection(server)}, server.receive, server.send)
    assert server.body == b"data: x\n\n" * 10


async def test_sse_starlette_neither_logs_events_nor_handles_signals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = AsgiServer()

    async def events(writer: EventWriter) -> AsyncGenerator[bytes, None]:
        yield b"data: secret\n\n"

    await EventStream(events, lambda: None)(SCOPE, server.receive, server.send)
    assert "secret" not in caplog.text
    assert uvicorn.Server.handle_exit.__module__ == "uvicorn.server"
