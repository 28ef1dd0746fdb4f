"""Floods of tiny requests, chunks and WebSocket frames: short turns of the loop, bounded memory, right answers."""

from __future__ import annotations

import asyncio
import base64
import struct
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from server.api.connection import portions
from server.api.connection.portions import Portions
from server.api.connection.protocol import MAX_HEADERS, MAX_PIPELINED, DirectHttpProtocol
from server.api.connection.socket_protocol import MAX_FRAGMENTS, LimitedSocketProtocol
from server.system.loop_iterations import ITERATION_SECONDS
from tests.waiting import HANG_SECONDS

READ_BYTES = 256 << 10
"""Most bytes that one read from a connection returns."""
PORTION_SECONDS = 0.001
"""Time that parsing a portion takes on the clock of the test."""
HEAD = b"GET /%d HTTP/1.1\r\nhost: localhost\r\n\r\n"
POST = b"POST /post HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
HANDSHAKE = (
    b"GET /v1/realtime HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: %b\r\n\r\n" % base64.b64encode(bytes(16))
)
TEXT, CONTINUATION, BINARY, CLOSE, PING, PONG, LAST = 1, 0, 2, 8, 9, 10, 0x80


def frame(opcode: int, payload: bytes = b"") -> bytes:
    """A masked frame (RFC 6455, section 5.2). The mask is zero, so that the payload is readable."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xff" + struct.pack("!Q", size)
    return bytes([opcode]) + length + bytes(4) + payload


class App:
    """Echoes requests and messages. gate: set while it takes messages. messages: those that it has taken."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.messages: list[Message] = []
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._converse(receive, send)
            return
        self.paths.append(scope["path"])
        body, more = b"", scope["method"] == "POST"
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        answer = b"%b %d" % (scope["path"].encode(), len(body))
        headers = [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _converse(self, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while True:
            await self.gate.wait()
            self.messages.append(message := await receive())
            if message["type"] == "websocket.disconnect":
                return
            await send({"type": "websocket.send", "text": str(len(message.get("text") or message.get("bytes") or ""))})


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class LargestTurn:
    """Counts the portions that are parsed in each iteration of the event loop.

    The clock of the loop stands still, and each portion moves it by `PORTION_SECONDS`. The result thus depends neither
    on the machine nor on the garbage collector.

    portions: most portions of one iteration. total: those of all iterations. size: bytes of the largest portion.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.portions = self.total = self.size = self._before = 0
        loop = asyncio.get_running_loop()
        start = loop.time()
        monkeypatch.setattr(loop, "time", lambda: start + self.total * PORTION_SECONDS)
        create = Portions.__init__

        def created(portions: Portions, size: int, feed: Callable[[memoryview], None], *others: Any) -> None:
            def counted(data: memoryview) -> None:
                self.total += 1
                self.size = max(self.size, len(data))
                feed(data)

            create(portions, size, counted, *others)

        monkeypatch.setattr(Portions, "__init__", created)
        loop.call_soon(self._end_turn)

    def start(self) -> None:
        """Forget what was parsed while the connections were opened."""
        self.portions, self.size, self._before = 0, 0, self.total

    def _end_turn(self) -> None:
        self.portions, self._before = max(self.portions, self.total - self._before), self.total
        asyncio.get_running_loop().call_soon(self._end_turn)


async def check_turns(connections: list[Connection], data: bytes, largest: LargestTurn, portion_bytes: int) -> None:
    """Write bytes to all connections. One iteration parses a portion of each, and further ones while it has time.

    Of a pipeline with too many requests, the rest is not parsed.
    portion_bytes: size of a portion whose parsing takes about as long as an iteration should.
    """
    for _, writer in connections:
        writer.write(data)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert 0 < largest.size <= portion_bytes
    assert largest.portions <= len(connections) + 2 * ITERATION_SECONDS / PORTION_SECONDS
    assert largest.total > (0 if data.startswith(b"GET") else 2 * largest.portions)


class Listener:
    """A server on a real socket. sockets: protocols of its WebSocket connections."""

    def __init__(self, app: App, **config: Any) -> None:
        self._config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, **config)
        self._config.load()
        self.sockets: list[LimitedSocketProtocol] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Listener:
        sockets = self.sockets

        class Socket(LimitedSocketProtocol):
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                sockets.append(self)

        self._config.ws_protocol_class = Socket
        state = ServerState()
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: DirectHttpProtocol(config=self._config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._listener.close()
        async with asyncio.timeout(HANG_SECONDS):
            await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def connect(self) -> Connection:
        reader, writer = await asyncio.open_connection(*self._listener.sockets[0].getsockname()[:2], limit=1 << 20)
        self._writers.append(writer)
        return reader, writer

    async def upgraded(self) -> Connection:
        """A WebSocket connection after its handshake."""
        reader, writer = await self.connect()
        writer.write(HANDSHAKE)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        return reader, writer


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """(opcode, payload) of the next frame of the server."""
    first, size = await reader.readexactly(2)
    if size == 126:
        (size,) = struct.unpack("!H", await reader.readexactly(2))
    return first & 15, await reader.readexactly(size)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("connections", [1, 16])
@pytest.mark.parametrize(
    "flood", [frame(LAST | PING), frame(LAST | PONG), frame(LAST | TEXT, b"a"), frame(CONTINUATION)]
)
async def test_no_turn_is_long_in_a_flood_of_frames(
    monkeypatch: pytest.MonkeyPatch, flood: bytes, connections: int
) -> None:
    largest = LargestTurn(monkeypatch)
    async with Listener(App()) as listener:
        opened = [await listener.upgraded() for _ in range(connections)]
        if flood[0] == CONTINUATION:
            for _, writer in opened:
                writer.write(frame(TEXT, b"a"))
        largest.start()
        await check_turns(opened, flood * (READ_BYTES // len(flood)), largest, 1 << 10)


@pytest.mark.parametrize("connections", [1, 16])
@pytest.mark.parametrize("data", [HEAD % 1 * (READ_BYTES // len(HEAD)), POST + b"1\r\nx\r\n" * (READ_BYTES // 6)])
async def test_no_turn_is_long_in_a_flood_of_requests_or_chunks(
    monkeypatch: pytest.MonkeyPatch, data: bytes, connections: int
) -> None:
    largest = LargestTurn(monkeypatch)
    async with Listener(App()) as listener:
        opened = [await listener.connect() for _ in range(connections)]
        largest.start()
        await check_turns(opened, data, largest, 16 << 10)


@pytest.mark.parametrize("split", [None, 7, 1000, 40_000])
async def test_all_bytes_are_parsed_in_their_order(split: int | None) -> None:
    """Requests with large bodies, of known and unknown length, and a pipelined one behind each."""
    body = bytes(range(256)) * 4096
    known = b"POST /known HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[at : at + 999]), body[at : at + 999]) for at in range(0, 99_999, 999))
    sent = known + HEAD % 1 + POST + chunks + b"0\r\n\r\n" + HEAD % 2
    expected = [b"/known %d" % len(body), b"/1 0", b"/post %d" % len(body[: 99_999 + 998 - 98]), b"/2 0"]
    expected[2] = b"/post %d" % sum(len(body[at : at + 999]) for at in range(0, 99_999, 999))
    async with Listener(App()) as listener:
        reader, writer = await listener.connect()
        for at in range(0, len(sent), split or len(sent)):
            writer.write(sent[at : at + (split or len(sent))])
            if at % 50 == 0:
                await asyncio.sleep(0)
        async with asyncio.timeout(HANG_SECONDS):
            for answer in expected:
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
                assert await reader.readexactly(len(answer)) == answer


async def test_a_deep_pipeline_is_answered_up_to_its_limit_and_then_closed() -> None:
    """The others are not answered, and the last answer says that the connection ends."""
    app = App()
    made = 0
    create = RequestResponseCycle.__init__

    def count(*arguments: Any, **named: Any) -> None:
        nonlocal made
        made += 1
        create(*arguments, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RequestResponseCycle, "__init__", count)
        async with Listener(app) as listener:
            reader, writer = await listener.connect()
            for first in range(0, 10_000, 1000):
                writer.write(b"".join(HEAD % number for number in range(first, first + 1000)))
            async with asyncio.timeout(HANG_SECONDS):
                received = await reader.read(-1)
    answers = received.split(b"HTTP/1.1 200 ")[1:]
    assert len(answers) == made == MAX_PIPELINED + 1
    assert app.paths == [f"/{number}" for number in range(MAX_PIPELINED + 1)]
    assert [b"connection: close" in answer for answer in answers] == [False] * MAX_PIPELINED + [True]


class ClosingApp(App):
    """Answers each request at once, without reading its body, and closes the connection. answer: body of an answer."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        headers = [(b"content-length", b"%d" % len(self._answer)), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": self._answer})


async def test_requests_that_wait_behind_the_last_answer_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client does not read the answer, so the connection stays open for a while after it was closed."""
    monkeypatch.setattr(portions, "has_time", lambda: False)
    app = ClosingApp(bytes(8_000_000))
    body = bytes(50_000)
    async with Listener(app) as listener:
        reader, writer = await listener.connect()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        head = b"POST /large HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body + HEAD % 1)
        await until(lambda: bool(app.paths))
        for _ in range(100):
            await asyncio.sleep(0.001)
    assert app.paths == ["/large"]


async def test_requests_after_the_answer_to_too_many_connections_do_not_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection lingers after that answer, which is its last one."""
    monkeypatch.setattr(DirectHttpProtocol, "max_connections", 0)
    app = ClosingApp(b"full")
    async with Listener(app) as listener:
        reader, writer = await listener.connect()
        writer.write(HEAD % 1)
        async with asyncio.timeout(HANG_SECONDS):
            assert (await reader.read(-1)).startswith(b"HTTP/1.1 413 ")
        writer.write(HEAD % 2)
        for _ in range(100):
            await asyncio.sleep(0.001)
    assert app.paths == ["/1"] and "Exception" not in caplog.text


async def test_a_fault_in_a_later_portion_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that parses it has no caller that could handle the exception."""
    monkeypatch.setattr(portions, "has_time", lambda: False)
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    parsed, aborted, transport = [], [], MagicMock()

    def feed(data: memoryview) -> None:
        parsed.append(bytes(data))
        if parsed == [b"ab", b"cd"]:
            raise ValueError("a fault")

    flow = portions.HeldFlow(transport)
    received = Portions(2, feed, flow, lambda: True, lambda: aborted.append(True))
    received.add(b"abcdef")
    transport.pause_reading.assert_called_once()
    await until(lambda: bool(aborted))
    received.add(b"gh")
    assert parsed == [b"ab", b"cd"] and str(faults[0]["exception"]) == "a fault"
    transport.resume_reading.assert_called_once()


async def test_too_many_headers_are_refused() -> None:
    app = App()
    async with Listener(app) as listener:
        for count, status in ((MAX_HEADERS, b"200"), (MAX_HEADERS + 1, b"431")):
            reader, writer = await listener.connect()
            writer.write(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * count + b"\r\n")
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 %b " % status)
    assert len(app.paths) == 1


async def test_a_body_without_memory_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser calls a method that raises MemoryError. That is no fault of the request."""

    def on_body(self: DirectHttpProtocol, body: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(DirectHttpProtocol, "on_body", on_body, raising=False)
    async with Listener(App()) as listener:
        reader, writer = await listener.connect()
        writer.write(POST + b"1\r\nx\r\n")
        answer = await reader.read(-1)
    assert answer.startswith(b"HTTP/1.1 503 ") and b"no memory" in answer and b"not_ready" in answer


async def test_messages_arrive_complete_and_in_order() -> None:
    app = App()
    sent = [str(number) * (1 + number % 7) for number in range(5000)] + ["x" * 1_000_000]
    async with Listener(app) as listener:
        reader, writer = await listener.upgraded()
        writer.write(b"".join(frame(LAST | TEXT, text.encode()) for text in sent))
        writer.write(frame(TEXT, b"in ") + frame(LAST | PING, b"mine") + frame(CONTINUATION) + frame(LAST, b"parts"))
        sizes, pongs = [], []
        async with asyncio.timeout(HANG_SECONDS):
            while len(sizes) < len(sent) + 1:
                opcode, payload = await read_frame(reader)
                (sizes if opcode == TEXT else pongs).append(payload)
    assert [message.get("text") for message in app.messages[: len(sent)]] == sent
    assert app.messages[len(sent)]["text"] == "in parts" and pongs == [b"mine"]
    assert sizes == [b"%d" % len(text) for text in [*sent, "in parts"]]


async def test_a_message_of_too_many_fragments_ends_the_connection() -> None:
    """Empty frames do not add to the size of a message, but each takes memory."""
    app = App()
    async with Listener(app) as listener:
        reader, writer = await listener.upgraded()
        writer.write(frame(TEXT, b"a") + frame(CONTINUATION) * (MAX_FRAGMENTS - 2) + frame(LAST))
        async with asyncio.timeout(HANG_SECONDS):
            assert await read_frame(reader) == (TEXT, b"1"), "the limit itself"
            writer.write(frame(TEXT, b"a") + frame(CONTINUATION) * (50 * MAX_FRAGMENTS))
            opcode, payload = await read_frame(reader)
            assert (opcode, payload[:2]) == (CLOSE, struct.pack("!H", 1009))
            await until(lambda: app.messages[-1]["type"] == "websocket.disconnect")
        (socket,) = listener.sockets
        assert len(socket.frames) <= MAX_FRAGMENTS and len(app.messages) == 2


async def test_a_client_that_reads_no_answers_to_its_pings_fills_no_memory() -> None:
    async with Listener(App()) as listener:
        reader, writer = await listener.upgraded()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        pings = frame(LAST | PING, bytes(125)) * 2000
        (socket,) = listener.sockets
        sent = 0
        while writer.transport.get_write_buffer_size() < 1 << 20:
            writer.write(pings)
            sent += len(pings)
            for _ in range(200):
                await asyncio.sleep(0)
            assert sent < 200 << 20, "the server takes everything"
        assert socket.transport.get_write_buffer_size() < 1 << 20


async def test_messages_wait_unparsed_until_the_application_takes_them() -> None:
    app = App()
    async with Listener(app) as listener:
        _, writer = await listener.upgraded()
        app.gate.clear()
        await asyncio.sleep(0)
        sent = 0
        while writer.transport.get_write_buffer_size() < 1 << 20:
            writer.write(frame(LAST | TEXT, b"a") * 10_000)
            sent += 10_000
            for _ in range(200):
                await asyncio.sleep(0)
            assert sent < 20_000_000, "the server takes everything"
        (socket,) = listener.sockets
        assert socket.queue.qsize() < 1000
        app.gate.set()
        await until(lambda: len(app.messages) > 2000)


async def test_an_answer_to_a_ping_that_waits_unparsed_does_not_end_the_connection() -> None:
    """The application works for longer than the time limit of a ping, and nothing is read meanwhile."""
    app = App()
    async with Listener(app, ws_ping_interval=0.02, ws_ping_timeout=0.05) as listener:
        reader, writer = await listener.upgraded()
        app.gate.clear()
        writer.write(frame(LAST | TEXT, b"first") + frame(LAST | TEXT, b"second"))
        opcode, payload = await read_frame(reader)
        while opcode == PING:
            writer.write(frame(LAST | PONG, payload))
            opcode, payload = await read_frame(reader)
        assert opcode == TEXT
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            await asyncio.sleep(0.01)
        (socket,) = listener.sockets
        assert not socket.transport.is_closing()
        app.gate.set()
        while (await read_frame(reader)) != (TEXT, b"6"):
            pass
        # A client that answers no ping although the server reads is told so.
        while (await read_frame(reader))[0] != CLOSE:
            pass
