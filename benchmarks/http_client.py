"""A small HTTP/1.1 client for many connections: as little work as can be, since it shares the cores with the server.

Chunked bodies are not unpacked: events are counted by their first line, and nothing is read out of an answer until all
have come. Having been woken it waits a moment, so that what a step brings to many connections wakes it once.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

_TOKEN = b"event: token\n"
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_COMPLETION = re.compile(rb'"completion_tokens":(\d+)')
_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_MOMENT_SECONDS = 0.0005
_SILENCE_SECONDS = 600.0
_BUFFER = memoryview(bytearray(1 << 18))


@dataclass
class Answer:
    """One answer. Times are of time.perf_counter(); `times`: when each token event was received, to half a millisecond.

    body: all of it, or the end of a stream.
    """

    began: float
    ended: float = 0.0
    times: list[float] = field(default_factory=list)
    body: bytes = b""

    @property
    def completion_tokens(self) -> int:
        """Of a stream. Raises RuntimeError where it did not end as it should."""
        counted = _COMPLETION.findall(self.body)
        if not counted:
            raise RuntimeError(f"a stream without an end: {self.body[-200:]!r}")
        return int(counted[-1])


class _Connection:
    """Kept open between requests. head: of the answer that is being received; None until it is whole."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answer = Answer(0.0)

    def ask(self, route: str, body: bytes) -> Answer:
        self._head: bytes | None = None
        self._length: int | None = None
        self._data = b""
        self.answer = Answer(time.perf_counter())
        head = f"POST {route} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return self.answer

    def receive(self) -> bool:
        """Take what has come. Returns whether the answer is whole; raises RuntimeError for any status but 200."""
        count = self.socket.recv_into(_BUFFER)
        if not count:
            raise RuntimeError("the server hung up in the middle of an answer")
        new = bytes(_BUFFER[:count])
        now = time.perf_counter()
        if self._head is None:
            head, found, new = (self._data + new).partition(_HEAD_END)
            if not found:
                self._data = head
                return False
            self._head, self._data = head + b"\r\n", b""
            length = _LENGTH.search(self._head)
            self._length = None if length is None else int(length[1])
        if self._length is not None:
            self._data += new
            return len(self._data) >= self._length and self._end(now)
        # A marker may be cut in two: look again at the end of what was there.
        self.answer.times += [now] * (self._data[-len(_TOKEN) + 1 :] + new).count(_TOKEN)
        self._data = self._data[-4096:] + new
        return self._data.endswith(_LAST_CHUNK) and self._end(now)

    def _end(self, now: float) -> bool:
        assert self._head is not None
        self.answer.ended, self.answer.body = now, self._data
        if not self._head.startswith(b"HTTP/1.1 200"):
            status = self._head.partition(b"\r\n")[0].decode()
            raise RuntimeError(f"{status}: {self._data[:200].decode(errors='replace')}")
        return True


def ask_all(port: int, calls: Iterable[tuple[str, bytes]], in_flight: int) -> tuple[list[Answer], float]:
    """The answers to (route, body), in the order of the calls, so many of them under way at once.

    Returns with them the seconds from the first request to the last answer. Raises RuntimeError for a status but 200.
    """
    waiting = iter(calls)
    answers: list[Answer] = []
    connections = {one.socket.fileno(): one for one in [_Connection(port) for _ in range(in_flight)]}
    try:
        with select.epoll() as epoll:
            open_calls = 0

            def ask(connection: _Connection) -> bool:
                call = next(waiting, None)
                if call is not None:
                    answers.append(connection.ask(*call))
                return call is not None

            for descriptor, connection in connections.items():
                epoll.register(descriptor, select.EPOLLIN)
                open_calls += ask(connection)
            while open_calls:
                if not epoll.poll(_SILENCE_SECONDS):
                    raise RuntimeError(f"the server was silent for {_SILENCE_SECONDS:.0f} s")
                time.sleep(_MOMENT_SECONDS)
                for descriptor, _ in epoll.poll(0):
                    connection = connections[descriptor]
                    if connection.receive() and not ask(connection):
                        epoll.unregister(descriptor)  # a server may hang up on one that idles
                        open_calls -= 1
    finally:
        for connection in connections.values():
            connection.socket.close()
    return answers, max(one.ended for one in answers) - answers[0].began
