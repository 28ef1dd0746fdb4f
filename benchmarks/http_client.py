"""A small HTTP/1.1 client for one connection: as little work as can be, since it shares the cores with the server.

Chunked bodies are not unpacked: events are counted by their first line, and the last one is read for its figures.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

_TOKEN = b"event: token\n"
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_COMPLETION = re.compile(rb'"completion_tokens":(\d+)')
_LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass
class Stream:
    """A streamed answer. times: when each token event was received, time.perf_counter()."""

    times: list[float] = field(default_factory=list)
    completion_tokens: int = 0


class Connection:
    """Kept open between requests."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    async def post(self, route: str, body: bytes) -> bytes:
        """The body of the answer. Raises RuntimeError for any status but 200."""
        head = await self._ask(route, body)
        length = _LENGTH.search(head)
        assert length is not None, "an answer without a length"
        answer = await self._reader.readexactly(int(length[1]))
        _check(head, answer)
        return answer

    async def stream(self, route: str, body: bytes) -> Stream:
        """Receive events until the answer ends."""
        head = await self._ask(route, body)
        if length := _LENGTH.search(head):
            _check(head, await self._reader.readexactly(int(length[1])))
        stream, data = Stream(), b""
        while not data.endswith(_LAST_CHUNK):
            new = await self._reader.read(1 << 16)
            if not new:
                raise RuntimeError("the server hung up in the middle of an answer")
            now = time.perf_counter()
            # A marker may be cut in two: look again at the end of what was there.
            tail = data[-len(_TOKEN) + 1 :]
            stream.times += [now] * (tail + new).count(_TOKEN)
            data = data[-4096:] + new
        counted = _COMPLETION.findall(data)
        if not counted:
            raise RuntimeError(f"a stream without an end: {data[-200:]!r}")
        stream.completion_tokens = int(counted[-1])
        return stream

    async def _ask(self, route: str, body: bytes) -> bytes:
        head = f"POST {route} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return await self._reader.readuntil(b"\r\n\r\n")


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _check(head: bytes, body: bytes) -> None:
    if not head.startswith(b"HTTP/1.1 200"):
        status = head.partition(b"\r\n")[0].decode()
        raise RuntimeError(f"{status}: {body[:200].decode(errors='replace')}")
