"""A small HTTP/1.1 client for many connections. It uses little processor time, so that most is left for the server.

It counts the events of a stream by their first bytes, and parses the responses after all have arrived. With several
connections it waits 0.5 ms after each wake-up, so that it wakes up once for all events of a step.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

TOKEN = b"event: token\n"
"""First line of a token event of Triptych."""
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_COMPLETION = re.compile(rb'"completion_tokens":(\d+)')
_EVENTS = b"text/event-stream"
_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_WAIT_SECONDS = 0.0005
_TIMEOUT_SECONDS = 600.0
_BUFFER = memoryview(bytearray(1 << 18))


@dataclass
class Response:
    """One response. Times are from time.perf_counter(), in seconds.

    started: time at which the request was sent.
    ended: time at which the response was complete.
    times: time at which each token event was received, with an error of at most 0.5 ms.
    body: the complete body; for a stream, only its end.
    """

    started: float
    ended: float = 0.0
    times: list[float] = field(default_factory=list)
    body: bytes = b""

    @property
    def completion_tokens(self) -> int:
        """Number of tokens in a stream, from its final event. Raises RuntimeError for a stream without this event."""
        counted = _COMPLETION.findall(self.body)
        if not counted:
            raise RuntimeError(f"the stream has no final event: {self.body[-200:]!r}")
        return int(counted[-1])


class _Connection:
    """A TCP connection to the server that stays open between requests.

    event: bytes with which each token event of a stream begins.
    """

    def __init__(self, port: int, event: bytes) -> None:
        self._event = event
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.response = Response(0.0)

    def send(self, route: str, body: bytes) -> Response:
        """Send a request. `receive` fills the returned response."""
        self._head: bytes | None = None
        self._length: int | None = None
        self._data = b""
        self.response = Response(time.perf_counter())
        head = f"POST {route} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return self.response

    def receive(self) -> bool:
        """Read the available data into the response. Returns whether the response is complete.

        Raises RuntimeError for a status other than 200, and for a closed connection.
        """
        count = self.socket.recv_into(_BUFFER)
        if not count:
            raise RuntimeError("the server closed the connection before the end of the response")
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
        # The first bytes of an event may be split between two reads: search the end of the earlier data again.
        self.response.times += [now] * (self._data[-len(self._event) + 1 :] + new).count(self._event)
        is_stream = _EVENTS in self._head
        self._data = (self._data[-4096:] if is_stream else self._data) + new
        if not self._data.endswith(_LAST_CHUNK):
            return False
        if not is_stream:
            self._data = _joined(self._data)
        return self._end(now)

    def _end(self, now: float) -> bool:
        assert self._head is not None
        self.response.ended, self.response.body = now, self._data
        if not self._head.startswith(b"HTTP/1.1 200"):
            status = self._head.partition(b"\r\n")[0].decode()
            raise RuntimeError(f"{status}: {self._data[:200].decode(errors='replace')}")
        return True


def _joined(chunked: bytes) -> bytes:
    """Decode a body in chunked transfer coding (RFC 9112, section 7.1)."""
    parts, at = [], 0
    while True:
        size, found, _ = chunked[at:].partition(b"\r\n")
        count = int(size, 16)
        if not count:
            return b"".join(parts)
        at += len(size) + len(found)
        parts.append(chunked[at : at + count])
        at += count + 2


def send_all(
    port: int, calls: Iterable[tuple[str, bytes]], in_flight: int, event: bytes = TOKEN
) -> tuple[list[Response], float]:
    """Send many requests to a server on this machine.

    calls: route and body of each request.
    in_flight: largest number of concurrent requests.
    event: bytes with which each token event of a stream begins.
    Returns the responses in the order of the calls, and the time from the first request to the last response in
    seconds.
    Raises RuntimeError for a status other than 200.
    """
    waiting = iter(calls)
    responses: list[Response] = []
    connections = {opened.socket.fileno(): opened for opened in [_Connection(port, event) for _ in range(in_flight)]}
    try:
        with select.epoll() as epoll:
            open_calls = 0

            def send_next(connection: _Connection) -> bool:
                call = next(waiting, None)
                if call is not None:
                    responses.append(connection.send(*call))
                return call is not None

            for descriptor, connection in connections.items():
                epoll.register(descriptor, select.EPOLLIN)
                open_calls += send_next(connection)
            while open_calls:
                if not epoll.poll(_TIMEOUT_SECONDS):
                    raise RuntimeError(f"the server sent nothing for {_TIMEOUT_SECONDS:.0f} s")
                if in_flight > 1:
                    time.sleep(_WAIT_SECONDS)
                for descriptor, _ in epoll.poll(0):
                    connection = connections[descriptor]
                    if connection.receive() and not send_next(connection):
                        epoll.unregister(descriptor)  # a server may close an idle connection
                        open_calls -= 1
    finally:
        for connection in connections.values():
            connection.socket.close()
    return responses, max(response.ended for response in responses) - responses[0].started
