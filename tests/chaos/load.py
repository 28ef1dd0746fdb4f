"""A load generator that needs little processor time, as a process of its own: `python -m tests.chaos.load`.

It sends one fixed request on raw connections, and prints one JSON object with what happened. The answer of each request
counts as refused (429 or 503), served (200) or failed (anything else, a reset, or no answer).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

ANSWER_SECONDS = 60.0
REFUSALS = (429, 503)


@dataclass
class Outcome:
    """What a load has seen.

    seconds: from the first request to the last answer that counts.
    served: requests answered with 200 in that time.
    refusal_seconds: time of each refusal, from the planned moment of its request.
    without_retry: refusals without `Retry-After`.
    late_seconds: largest delay of a request by the generator itself.
    failures: number of failed requests, by reason.
    """

    seconds: float = 0.0
    served: int = 0
    refusal_seconds: list[float] = field(default_factory=list)
    without_retry: int = 0
    late_seconds: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Served requests per second."""
        return self.served / self.seconds


class _Client(asyncio.Protocol):
    """One connection: sends the request, and reads the answer without parsing more than it must."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.began = 0.0
        self.busy = False
        self.buffer = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.busy:
            transport.write(self.load.request)

    def send(self, began: float) -> None:
        self.began, self.busy, self.buffer = began, True, b""
        if self.transport is not None:
            self.transport.write(self.load.request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lower = head.lower()
        at = lower.find(b"content-length:")
        if at < 0 or len(body) < int(lower[at + 15 :].split(b"\r\n", 1)[0]):
            return
        self.busy = False
        self.load.answered(self, int(head[9:12]), b"\nretry-after:" in lower)
        if b"\nconnection: close" in lower and self.transport is not None:
            self.transport.close()
        else:
            self.load.free(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.busy:
            self.busy = False
            self.load.failed("reset" if exc is not None else "closed without an answer")


class Load:
    """Requests of one kind. url: of the server. path, body: of the request."""

    def __init__(self, url: str, path: str, body: Any) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self.host, self.port = parts.hostname, parts.port
        content = json.dumps(body).encode()
        self.request = (
            b"POST %s HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
            % (path.encode(), len(content), content)
        )
        self.outcome = Outcome()
        self._idle: deque[_Client] = deque()
        self._open = 0
        self._end = float("inf")
        self._closed_loop = False
        self._all_answered = asyncio.Event()

    def answered(self, client: _Client, status: int, has_retry: bool) -> None:
        now = time.monotonic()
        if status == 200 and now <= self._end:
            self.outcome.served += 1
        elif status in REFUSALS:
            self.outcome.refusal_seconds.append(now - client.began)
            self.outcome.without_retry += not has_retry
        elif status != 200:
            self.failed(f"status {status}", ends=False)
        self._ended()

    def failed(self, reason: str, ends: bool = True) -> None:
        self.outcome.failures[reason] = self.outcome.failures.get(reason, 0) + 1
        if ends:
            self._ended()

    def _ended(self) -> None:
        self._open -= 1
        if not self._open:
            self._all_answered.set()

    def free(self, client: _Client) -> None:
        """A connection is idle: it sends the next request of a closed loop, or waits for one."""
        if not self._closed_loop:
            self._idle.append(client)
        elif time.monotonic() < self._end:
            self._open += 1
            client.send(time.monotonic())

    async def _send(self, planned: float) -> None:
        """Send one request, on an idle connection or a new one."""
        self._open += 1
        self._all_answered.clear()
        while self._idle:
            client = self._idle.popleft()
            if client.transport is not None and not client.transport.is_closing():
                client.send(planned)
                return
        client = _Client(self)
        client.send(planned)
        try:
            await asyncio.get_running_loop().create_connection(lambda: client, self.host, self.port)
        except OSError as error:
            if client.busy:
                client.busy = False
                self.failed(type(error).__name__)

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._all_answered.wait()
        except TimeoutError:
            self.outcome.failures["no answer"] = self._open

    async def closed(self, connections: int, seconds: float) -> Outcome:
        """Each connection sends its next request after its last answer. Only answers within `seconds` count."""
        self._closed_loop = True
        began = time.monotonic()
        self._end = began + seconds
        await asyncio.gather(*(self._send(began) for _ in range(connections)))
        await self._finish()
        self.outcome.seconds = seconds
        return self.outcome

    async def arrivals(self, rate: float, seconds: float) -> Outcome:
        """Requests at a fixed rate, whether or not earlier ones are answered. Only answers within `seconds` count."""
        began = time.monotonic()
        self._end = began + seconds
        tasks: set[asyncio.Task[None]] = set()
        for number in range(int(rate * seconds)):
            planned = began + number / rate
            delay = planned - time.monotonic()
            if delay > 0:
                await asyncio.sleep(delay)
            self.outcome.late_seconds = max(self.outcome.late_seconds, time.monotonic() - planned)
            task = asyncio.ensure_future(self._send(planned))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await self._finish()
        self.outcome.seconds = seconds
        return self.outcome

    async def at_once(self, connections: int) -> Outcome:
        """One request on each of many connections, all at once. All answers count."""
        began = time.monotonic()
        await asyncio.gather(*(self._send(began) for _ in range(connections)))
        await self._finish()
        self.outcome.seconds = time.monotonic() - began
        return self.outcome


Kind = Literal["closed", "arrivals", "at_once"]


def run(kind: Kind, url: str, path: str, body: Any, *numbers: float) -> Outcome:
    """Run a load in a process of its own. numbers: arguments of the method of `Load`."""
    request = json.dumps([kind, url, path, body, numbers])
    command = [sys.executable, "-m", "tests.chaos.load"]
    done = subprocess.run(command, input=request.encode(), stdout=subprocess.PIPE, check=True)
    return Outcome(**json.loads(done.stdout))


async def _main() -> Outcome:
    kind, url, path, body, numbers = json.loads(sys.stdin.read())
    load = Load(url, path, body)
    if kind == "closed":
        return await load.closed(int(numbers[0]), numbers[1])
    if kind == "arrivals":
        return await load.arrivals(*numbers)
    return await load.at_once(int(numbers[0]))


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(_main()))))
