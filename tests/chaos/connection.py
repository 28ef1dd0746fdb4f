"""A small HTTP/1.1 client on asyncio streams, for load generators.

It needs much less processor time than a client library. It also shows connection resets, incomplete answers and the
time of each event, which libraries hide.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


class Closed(Exception):
    """The server closed the connection before the end of an answer."""


@dataclass
class Answer:
    """An HTTP answer.

    headers: headers with lower-case names. seconds: time from the first byte sent to the last byte received.
    """

    status: int
    headers: dict[str, str]
    body: bytes = b""
    seconds: float = 0.0

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Event:
    """A server-sent event. at: monotonic time of its arrival, in seconds."""

    name: str
    data: Any
    at: float


@dataclass
class Connection:
    """One connection that stays open between requests.

    url: address of the server, without a path.
    headers: sent with every request.
    """

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    _reader: asyncio.StreamReader | None = None
    _writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        parts = urlsplit(self.url)
        self._reader, self._writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 26)

    def close(self) -> None:
        """Close immediately. If data is unread, the server sees a reset, as from a client that is killed."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def send(self, method: str, path: str, body: Any = None, more: dict[str, str] | None = None) -> None:
        """Send a request. body: bytes to send, or a value to send as JSON. more: further headers."""
        if self._writer is None:
            await self.open()
        assert self._writer is not None
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        headers = {"host": "127.0.0.1", "content-length": str(len(content)), **self.headers, **(more or {})}
        if content and "content-type" not in headers:
            headers["content-type"] = "application/json"
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self._writer.write("\r\n".join(lines).encode("latin-1") + content)
        await self._writer.drain()

    async def head(self) -> Answer:
        """Read the status and the headers of the answer. Raises Closed."""
        assert self._reader is not None
        try:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Closed(f"no answer: {type(error).__name__}") from None
        first, *lines = head[:-4].split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return Answer(int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs})

    async def chunks(self, answer: Answer) -> AsyncIterator[bytes]:
        """Yield the body of an answer in the parts in which the server sent it. Raises Closed."""
        assert self._reader is not None
        try:
            if answer.headers.get("transfer-encoding") == "chunked":
                while size := int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16):
                    yield (await self._reader.readexactly(size + 2))[:-2]
                await self._reader.readexactly(2)
            else:
                yield await self._reader.readexactly(int(answer.headers.get("content-length", "0")))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Closed(f"the answer was cut: {type(error).__name__}") from None

    async def request(self, method: str, path: str, body: Any = None, more: dict[str, str] | None = None) -> Answer:
        """Send a request and read the whole answer."""
        began = time.monotonic()
        await self.send(method, path, body, more)
        answer = await self.head()
        parts = [part async for part in self.chunks(answer)] if method != "HEAD" else []
        answer.body, answer.seconds = b"".join(parts), time.monotonic() - began
        if answer.headers.get("connection") == "close":
            self.close()
        return answer

    async def events(self, answer: Answer) -> AsyncIterator[Event]:
        """Yield the server-sent events of a streaming answer, without comments and OpenAI's `[DONE]`."""
        buffer = b""
        async for part in self.chunks(answer):
            now = time.monotonic()
            buffer += part
            while b"\n\n" in buffer:
                frame, buffer = buffer.split(b"\n\n", 1)
                fields = [line.partition(b": ") for line in frame.split(b"\n") if not line.startswith(b":")]
                data = b"\n".join(value for name, _, value in fields if name == b"data")
                if not data or data == b"[DONE]":
                    continue
                name = next((value.decode() for name, _, value in fields if name == b"event"), "message")
                yield Event(name, json.loads(data), now)
        if buffer.strip():
            raise Closed("the stream ended inside an event")


async def ask(url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
    """Send one request on a new connection and read the whole answer."""
    async with Connection(url, headers or {}) as connection:
        return await connection.request(method, path, body)


async def stream(url: str, path: str, body: Any) -> list[Event]:
    """Send a streaming request on a new connection. Returns all events.

    Raises AssertionError for another status than 200.
    """
    async with Connection(url) as connection:
        await connection.send("POST", path, body)
        answer = await connection.head()
        assert answer.status == 200, f"status {answer.status}"
        return [event async for event in connection.events(answer)]
