"""A load generator that needs little processor time and runs as a process: `python -m tests.chaos.load`.

It sends prepared requests on raw sockets, and parses only the status, the length and `Retry-After` of an answer. An
answer is counted as refused (429 or 503), served (200) or failed (anything else, a reset, or no answer).

In reality, clients run on other machines. Here they share the cores with the server. Therefore the generator raises its
priority if it is allowed to, and the delay with which it sends is measured separately from the server's time to answer.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

ANSWER_SECONDS = 60.0
REFUSALS = (429, 503)
_PRIORITY = -10
_RECEIVE_BYTES = 1 << 16


@dataclass
class Outcome:
    """The results of a load.

    seconds: time from the first request to the last answer.
    served: number of requests that were answered with 200.
    refusal_seconds: time of each refusal after its request was sent, or after its connection was started.
    late_seconds: delay of each request: time at which it was sent minus the planned time.
    without_retry: number of refusals without `Retry-After`.
    failures: number of failed requests, by reason.
    processor_seconds: processor time of the generator.
    """

    seconds: float = 0.0
    served: int = 0
    refusal_seconds: list[float] = field(default_factory=list)
    late_seconds: list[float] = field(default_factory=list)
    without_retry: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    processor_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Number of served requests per second."""
        return self.served / self.seconds


class _Client:
    """A connection. began: time at which its current request was sent, or 0 while it has none."""

    __slots__ = ("began", "connecting", "received", "socket")

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(address)
        self.connecting = True
        self.began = 0.0
        self.received = b""


class Load:
    """Sends requests to one path of a server.

    url: address of the server. bodies: bodies of the requests, which are sent in order, again and again.
    """

    def __init__(self, url: str, path: str, bodies: Iterable[Any]) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self.address = parts.hostname, parts.port
        head = "POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        contents = [json.dumps(body) for body in bodies]
        self._requests = itertools.cycle([(head % (path, len(content)) + content).encode() for content in contents])
        self.outcome = Outcome()
        self._epoll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._idle: deque[_Client] = deque()
        self._open = 0
        self._began = time.monotonic()
        self._closed_loop = False

    def closed(self, connections: int, seconds: float) -> Outcome:
        """Send requests on several connections for `seconds`. Each sends its next request after the previous answer.

        Requests without an answer at the end are not counted.
        """
        self._closed_loop = True
        end = time.monotonic() + seconds
        for _ in range(connections):
            self._send()
        while (left := end - time.monotonic()) > 0:
            self._poll(left)
        self._open = 0
        return self._finish()

    def arrivals(self, rate: float, seconds: float) -> Outcome:
        """Send requests at a fixed rate per second, even if earlier ones have no answer yet.

        An idle connection is used again; otherwise a new one is opened.
        """
        began = time.monotonic()
        for number in range(int(rate * seconds)):
            planned = began + number / rate
            while (now := time.monotonic()) < planned:
                self._poll(planned - now)
            self.outcome.late_seconds.append(now - planned)
            self._send()
            self._poll(0)
        return self._finish()

    def at_once(self, connections: int) -> Outcome:
        """Send one request on each of many connections, all at once."""
        for _ in range(connections):
            self._send()
        return self._finish()

    def _send(self) -> None:
        """Send one request on an idle connection, or on a new one if none is idle."""
        self._open += 1
        if self._idle:
            client = self._idle.popleft()
            client.began = time.monotonic()
            self._write(client)
            return
        began = time.monotonic()
        client = _Client(self.address)
        client.began = began
        self._clients[client.socket.fileno()] = client
        self._epoll.register(client.socket, select.EPOLLOUT)

    def _write(self, client: _Client) -> None:
        request = next(self._requests)
        try:
            sent = client.socket.send(request)
        except OSError as error:
            self._lost(client, error)
            return
        assert sent == len(request), "a request does not fit into the buffer of its connection"

    def _poll(self, seconds: float) -> None:
        """Handle data that has arrived, or wait for data. seconds: longest time to wait."""
        for number, _ in self._epoll.poll(seconds):
            client = self._clients[number]
            if client.connecting:
                self._connected(client)
            else:
                self._read(client)

    def _connected(self, client: _Client) -> None:
        if error := client.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._lost(client, OSError(error, os.strerror(error)))
            return
        client.connecting = False
        self._epoll.modify(client.socket, select.EPOLLIN)
        self._write(client)

    def _read(self, client: _Client) -> None:
        try:
            data = client.socket.recv(_RECEIVE_BYTES)
        except OSError as error:
            self._lost(client, error)
            return
        if not data:
            self._lost(client, None)
            return
        client.received += data
        head, found, body = client.received.partition(b"\r\n\r\n")
        if not found:
            return
        lower = head.lower()
        at = lower.find(b"content-length:")
        if at < 0 or len(body) < int(lower[at + 15 :].split(b"\r\n", 1)[0]):
            return
        self._answered(client, int(head[9:12]), b"\nretry-after:" in lower)
        if b"\nconnection: close" in lower:
            self._close(client)
        else:
            self._idle.append(client)
            if self._closed_loop:
                self._send()

    def _answered(self, client: _Client, status: int, has_retry: bool) -> None:
        now = time.monotonic()
        if status in REFUSALS:
            self.outcome.refusal_seconds.append(now - client.began)
            self.outcome.without_retry += not has_retry
        elif status != 200:
            self._failed(f"status {status}")
        else:
            self.outcome.served += 1
        client.began, client.received = 0.0, b""
        self._open -= 1

    def _lost(self, client: _Client, error: OSError | None) -> None:
        """Handle a connection that the server has closed, or that could not be opened. error: None if it was closed."""
        if client.began:
            self._failed("closed without an answer" if error is None else type(error).__name__)
            self._open -= 1
        elif client in self._idle:
            self._idle.remove(client)
        self._close(client)

    def _close(self, client: _Client) -> None:
        del self._clients[client.socket.fileno()]
        self._epoll.unregister(client.socket)
        client.socket.close()

    def _failed(self, reason: str) -> None:
        self.outcome.failures[reason] = self.outcome.failures.get(reason, 0) + 1

    def _finish(self) -> Outcome:
        """Wait until all requests are answered, and return the outcome."""
        end = time.monotonic() + ANSWER_SECONDS
        while self._open and (left := end - time.monotonic()) > 0:
            self._poll(left)
        if self._open:
            self.outcome.failures["no answer"] = self._open
        self.outcome.seconds = time.monotonic() - self._began
        self.outcome.processor_seconds = time.process_time()
        return self.outcome


Kind = Literal["closed", "arrivals", "at_once"]


def run(kind: Kind, url: str, path: str, bodies: list[Any], *numbers: float) -> Outcome:
    """Run a load in a separate process. kind: name of the method of `Load`. numbers: arguments of this method."""
    with start(kind, url, path, bodies, *numbers) as process:
        return outcome_of(process)


def start(kind: Kind, url: str, path: str, bodies: list[Any], *numbers: float) -> subprocess.Popen[bytes]:
    """Start a load in a separate process, which prints its outcome at the end. Arguments as for `run`."""
    command = [sys.executable, "-m", "tests.chaos.load", json.dumps([kind, url, path, bodies, numbers])]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def outcome_of(process: subprocess.Popen[bytes]) -> Outcome:
    """Wait until a load has ended, and return its outcome."""
    output, _ = process.communicate()
    assert process.returncode == 0, "the load generator failed"
    return Outcome(**json.loads(output))


def _main() -> Outcome:
    kind, url, path, bodies, numbers = json.loads(sys.argv[1])
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    load = Load(url, path, bodies)
    if kind == "closed":
        return load.closed(int(numbers[0]), numbers[1])
    if kind == "arrivals":
        return load.arrivals(*numbers)
    return load.at_once(int(numbers[0]))


if __name__ == "__main__":
    print(json.dumps(asdict(_main())))
