"""Frames of server-sent events, and the response that sends them."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from server.api import sse
from server.api.sse import DIRECT_CONNECTION, EventStream, Writer, dumps, frame
from server.errors import ClientGone


def test_every_character_survives_as_ascii_on_one_line() -> None:
    for start in range(0, 0x110000, 0x400):
        text = "".join(chr(code) for code in range(start, start + 0x400) if not 0xD800 <= code <= 0xDFFF)
        data = dumps({"text": text})
        assert data.isascii() and not set(data) & {0x0A, 0x0D, 0x7F}
        assert json.loads(data) == {"text": text}


def test_a_frame() -> None:
    assert frame("token", {"text": "a\nb\u2028é"}) == b'event: token\ndata: {"text":"a\\nb\\u2028\\u00e9"}\n\n'


class Wire:
    """The server's side of a connection: what was sent, and a client that leaves when told."""

    def __init__(self) -> None:
        self.sent: list[dict] = []
        self.gone = asyncio.Event()
        self.blocked = False

    async def receive(self) -> dict:
        await self.gone.wait()
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


async def test_pings_only_after_silence() -> None:
    wire, quiet = Wire(), asyncio.Event()

    async def frames(writer: Writer) -> None:
        for _ in range(5):
            await writer.send(b"data: x\n\n")
        await quiet.wait()
        await writer.send(b"data: y\n\n")

    response = EventStream(frames, lambda: None, ping_seconds=0.02)
    sending = asyncio.create_task(response({}, wire.receive, wire.send))
    while wire.body.count(b": ping\n\n") < 2:
        await asyncio.sleep(0.001)
    quiet.set()
    await sending
    assert wire.body.startswith(b"data: x\n\n" * 5 + b": ping\n\n") and wire.complete
    assert wire.body.endswith(b": ping\n\ndata: y\n\n")


async def test_a_client_that_leaves_ends_the_frames() -> None:
    wire, left = Wire(), asyncio.Event()

    async def frames(writer: Writer) -> None:
        await writer.send(b"data: x\n\n")
        await left.wait()
        raise ClientGone("gone")

    sending = asyncio.create_task(EventStream(frames, left.set)({}, wire.receive, wire.send))
    while not wire.body:
        await asyncio.sleep(0)
    wire.gone.set()
    await sending
    assert left.is_set() and not wire.complete


async def test_a_reader_that_stalls_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "STALL_SECONDS", 0.02)
    wire, left, closed = Wire(), asyncio.Event(), asyncio.Event()
    wire.blocked = True

    async def frames(writer: Writer) -> None:
        try:
            await writer.send(b"data: x\n\n")
        finally:
            closed.set()

    await EventStream(frames, left.set)({}, wire.receive, wire.send)
    assert left.is_set() and closed.is_set() and not wire.complete


async def test_a_fault_closes_without_completing() -> None:
    wire = Wire()

    async def frames(writer: Writer) -> None:
        await writer.send(b"data: x\n\n")
        raise RuntimeError("fault")

    with pytest.raises(RuntimeError):
        await EventStream(frames, lambda: None)({}, wire.receive, wire.send)
    assert not wire.complete


class Pipe:
    """A connection's short way, open or closed."""

    def __init__(self, wire: Wire) -> None:
        self.wire, self.open, self.written = wire, True, 0

    def write(self, body: bytes) -> bool:
        if self.open:
            self.wire.sent.append({"body": body})
            self.written += 1
        return self.open


async def test_the_short_way_and_the_long_way_keep_the_order() -> None:
    wire = Wire()
    pipe = Pipe(wire)

    async def frames(writer: Writer) -> None:
        assert writer.write(b"1") and writer.write(b"2")
        pipe.open = False
        assert not writer.write(b"3")
        pipe.open = True
        assert not writer.write(b"4")  # what is kept goes first
        await writer.send(b"5")
        assert writer.write(b"6")

    await EventStream(frames, lambda: None)({DIRECT_CONNECTION: pipe}, wire.receive, wire.send)
    assert wire.body == b"123456" and wire.complete and pipe.written == 3


async def test_without_a_short_way_everything_goes_the_long_way() -> None:
    wire = Wire()

    async def frames(writer: Writer) -> None:
        for number in (b"1", b"2", b"3"):
            if not writer.write(number):
                await writer.send()

    await EventStream(frames, lambda: None)({}, wire.receive, wire.send)
    assert wire.body == b"123" and wire.complete and len(wire.sent) == 5


async def test_no_ping_where_frames_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on while nobody can look at it: the time between two frames is never long enough."""
    wire, now = Wire(), 0.0
    monkeypatch.setattr(sse, "time", SimpleNamespace(monotonic=lambda: now))

    async def frames(writer: Writer) -> None:
        nonlocal now
        for _ in range(10):
            await asyncio.sleep(0.01)
            now += 0.04
            writer.write(b"data: x\n\n")

    await EventStream(frames, lambda: None, ping_seconds=0.05)({DIRECT_CONNECTION: Pipe(wire)}, wire.receive, wire.send)
    assert wire.body == b"data: x\n\n" * 10
