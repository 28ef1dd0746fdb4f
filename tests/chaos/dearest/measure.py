"""Measure the cost of a request body for the HTTP process: the longest stall of its event loop, and its peak memory."""

from __future__ import annotations

import http.client
import json
import math
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from tests.chaos import facts
from tests.chaos.dearest.monitor import Stalls
from tests.chaos.dearest.recipe import JSON, WEBSOCKET
from tests.waiting import HANG_SECONDS, eventually

REPOSITORY = Path(__file__).resolve().parents[3]
LAUNCHER = "tests.chaos.dearest.monitor"
_READ_BYTES = 1 << 16
_KEPT_BYTES = 1000
_LAST = {"type": "input_audio_buffer.clear"}, {"type": "input_audio_buffer.commit", "event_id": "last"}
"""Events that are sent after those of a recipe.

The error for the last one shows that the server has handled them all."""


@dataclass(frozen=True)
class Answer:
    """The answer to a request.

    text: beginning of the body. status: HTTP status, or 0 without an answer (timeout, or closed connection).
    """

    status: int
    size: int
    text: str
    seconds: float


@dataclass(frozen=True)
class Measurement:
    """The cost of requests.

    stall_seconds: longest stall of the event loop, without the time in which other processes used the processor.
    clock_stall_seconds: longest stall of the event loop by the clock.
    peak_bytes, grown_bytes: peak resident memory of the HTTP process, and its growth.
    answers: the answer to each request.
    """

    stall_seconds: float
    clock_stall_seconds: float
    peak_bytes: int
    grown_bytes: int
    answers: Sequence[Answer]


class MeasuredServer:
    """A running server process whose event loop is watched for stalls."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, stalls: Stalls) -> None:
        self.process = process
        self.stalls = stalls
        self.log = log
        self.url = ""

    def wait_ready(self) -> None:
        eventually(self._is_ready)

    def _is_ready(self) -> bool:
        log = self.log.read_text()
        assert self.process.poll() is None, f"the server exited with {self.process.returncode}: {log}"
        if found := re.search(r"ready on (http://\S+) ", log):
            self.url = found[1]
        return bool(self.url)

    def page(self, path: str) -> bytes:
        """The body of the answer to a `GET` request."""
        with urllib.request.urlopen(self.url + path) as response:
            return bytes(response.read())

    def request(
        self, path: str, body: bytes | None = None, timeout: float = HANG_SECONDS, content_type: str = JSON
    ) -> Answer:
        """Send one request (`GET` without a body) and read the whole answer. Only its beginning is returned.

        With the content type `WEBSOCKET`, each line of the body is one event of a WebSocket connection.
        """
        if content_type == WEBSOCKET:
            return self._converse(path, (body or b"").splitlines(), timeout)
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
        started = time.monotonic()
        size, text, status = 0, b"", 0
        try:
            method = "GET" if body is None else "POST"
            connection.request(method, path, body, {"content-type": content_type})
            response = connection.getresponse()
            while chunk := response.read1(_READ_BYTES):
                size += len(chunk)
                text = (text + chunk[:_KEPT_BYTES])[:_KEPT_BYTES]
                if time.monotonic() - started > timeout:
                    raise TimeoutError
            status = response.status
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        return Answer(status, size, text.decode("utf-8", "replace"), time.monotonic() - started)

    def _converse(self, path: str, events: Sequence[bytes], timeout: float) -> Answer:
        """Send events of a live transcription, and wait until the server has handled all of them.

        The connection is closed before the server has transcribed any audio. The status is 422 if an event is refused.
        """
        started = time.monotonic()
        size, text, status = 0, "", 0
        url = self.url.replace("http", "ws", 1) + path
        with (
            suppress(OSError, WebSocketException, TimeoutError),
            connect(url, open_timeout=timeout, max_queue=None, compression=None, proxy=None) as live,
        ):
            closing = threading.Timer(timeout, lambda: live.socket.shutdown(socket.SHUT_RDWR))
            closing.start()
            try:
                for event in (*events, *(json.dumps(last).encode() for last in _LAST)):
                    live.send(event, text=True)
                is_refused = False
                for message in live:
                    size += len(message)
                    answer = json.loads(message)
                    if answer["type"] != "error":
                        continue
                    if answer["error"]["event_id"] == "last":
                        status = 422 if is_refused else 200
                        break
                    is_refused, text = True, text or str(message)[:_KEPT_BYTES]
            finally:
                closing.cancel()
        return Answer(status, size, text, time.monotonic() - started)

    def measure(
        self,
        path: str,
        bodies: Sequence[bytes],
        timeout: float = HANG_SECONDS,
        content_type: str = JSON,
        limit_seconds: float = math.inf,
    ) -> Measurement:
        """Send bodies to one route at the same time, and wait until all are answered or `timeout` seconds are over.

        limit_seconds: after a longer stall, the bodies are sent twice more, and the median of the three stalls is
            returned, because a pause of the whole machine also looks like a stall. The largest memory is returned.
        """
        first = self._measure(path, bodies, timeout, content_type)
        if first.stall_seconds <= limit_seconds:
            return first
        every = sorted(
            (first, *(self._measure(path, bodies, timeout, content_type) for _ in range(2))),
            key=lambda measured: measured.stall_seconds,
        )
        return replace(
            every[1],
            peak_bytes=max(measured.peak_bytes for measured in every),
            grown_bytes=max(measured.grown_bytes for measured in every),
        )

    def _measure(self, path: str, bodies: Sequence[bytes], timeout: float, content_type: str) -> Measurement:
        process = Path(f"/proc/{self.process.pid}")
        facts.wait_until_quiet(psutil.Process(self.process.pid))
        before = _memory(process, "VmRSS")
        (process / "clear_refs").write_text("5")  # the peak is counted from now on
        self.stalls.reset()
        with ThreadPoolExecutor(len(bodies)) as threads:
            answers = list(threads.map(lambda body: self.request(path, body, timeout, content_type), bodies))
        self.request("/health")
        seconds, own_seconds = self.stalls.longest()
        peak = _memory(process, "VmHWM")
        return Measurement(own_seconds, seconds, peak, peak - before, answers)


def _memory(process: Path, name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", (process / "status").read_text())
    assert found is not None
    return int(found[1]) << 10


@contextmanager
def measured_server(
    directory: Path, *arguments: str, launcher: Sequence[str] = (LAUNCHER,), with_stacks: bool = False
) -> Iterator[MeasuredServer]:
    """Start a server whose event loop and memory are measured, and stop it at the end of the block.

    directory: directory for the log and the files of the monitor.
    arguments: arguments of `triptych serve`.
    launcher: Python module to run, followed by arguments that precede those of the monitor.
    with_stacks: whether to write stack traces during stalls to the file `stalls.stacks` in `directory`.
    """
    log, stalls = directory / "log", Stalls(directory / "stalls")
    if with_stacks:
        stalls.stacks.touch()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *launcher, str(directory / "stalls"), "serve", *arguments, "--port", "0"],
            cwd=REPOSITORY,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    server = MeasuredServer(process, log, stalls)
    try:
        server.wait_ready()
        yield server
    finally:
        process.terminate()
        try:
            process.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
