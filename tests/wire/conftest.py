"""Fixtures that start a real server process with real sockets and the fake worker."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.waiting import HANG_SECONDS
from tests.warm_processes import WarmProcess
from tests.wire.checkpoints import write_all
from tests.wire.fake_serve import WORKER

REPOSITORY = Path(__file__).resolve().parents[2]
SERVE = (sys.executable, str(Path(__file__).with_name("fake_serve.py")))


class Process:
    """A server process. A thread reads its output, so that it never blocks on a full pipe.

    arguments: arguments of `triptych serve`.
    command: command line that starts a new interpreter; by default, a warm process with the fake worker runs instead.
    environment: variables added to those of the test process.
    """

    def __init__(
        self, *arguments: str, command: tuple[str, ...] | None = None, environment: dict[str, str] | None = None
    ) -> None:
        added = {"PYTHONPATH": str(REPOSITORY)} | (environment or {})
        reading, writing = os.pipe()
        self.process: subprocess.Popen[bytes] | WarmProcess
        if command is None:
            self.process = WarmProcess(("serve", "--port", "0", *arguments), writing, writing, WORKER, added)
        else:
            self.process = subprocess.Popen(
                [*command, *arguments], stdout=writing, stderr=writing, env=os.environ | added
            )
        os.close(writing)
        self._output = os.fdopen(reading, encoding="utf-8")
        self.lines: list[str] = []
        self._news: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = ""

    def _read(self) -> None:
        for line in self._output:
            self.lines.append(line)
            self._news.put(line)
        self._news.put(None)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def wait_ready(self, line_with_url: str = r"ready on (http://\S+)") -> Process:
        while (line := self._news.get(timeout=HANG_SECONDS)) is not None:
            if match := re.search(line_with_url, line):
                self.url = match[1]
                return self
        raise AssertionError(f"the server ended: {self.output}")

    def worker(self) -> psutil.Process:
        (child,) = self.workers()
        return child

    def workers(self) -> list[psutil.Process]:
        """The worker processes that run, oldest first."""
        children = psutil.Process(self.process.pid).children()
        running = [child for child in children if _is_worker(child)]
        return sorted(running, key=lambda child: child.create_time())

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=HANG_SECONDS, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, timeout=HANG_SECONDS, **more)

    def wait(self) -> int:
        """Wait until the process ends, and return its exit status."""
        return self.process.wait(HANG_SECONDS)

    def metric(self, name: str) -> float:
        """The value of a metric, summed over all its labels."""
        page = self.get("/metrics").text
        found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
        return sum(map(float, found))

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.wait()
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        self._reader.join(HANG_SECONDS)
        self._output.close()
        return status


def _is_worker(child: psutil.Process) -> bool:
    """Whether a child process of a server is a running worker. Templates and grammars have processes too."""
    try:
        return child.status() != psutil.STATUS_ZOMBIE and "--fd" in child.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def parse_events(text: str) -> list[tuple[str, dict]]:
    """Parse server-sent events into (name, data). Comments are skipped."""
    events = []
    for block in text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if fields:
            events.append((fields["event"], json.loads(fields["data"])))
    return events


LONG_LIMITS = ("--stale-seconds", "60", "--hang-seconds", "120", "--body-timeout-seconds", "60")
"""Options with long time limits, for tests of other things, because a test machine may stall."""


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_all(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def shared_server(checkpoints: list[str]) -> Iterator[Process]:
    """A server that is shared by all tests that do not change it."""
    server = Process("serve", "--port", "0", *checkpoints, *LONG_LIMITS, command=SERVE)
    try:
        yield server.wait_ready()
    finally:
        server.stop()


@pytest.fixture
def start(checkpoints: list[str]) -> Iterator[Callable[..., Process]]:
    """A function that starts a server, which is stopped at the end of the test."""
    started: list[Process] = []

    def begin(*arguments: str, models: list[str] | None = None, **options: dict[str, str]) -> Process:
        server = Process(*(checkpoints if models is None else models), *LONG_LIMITS, *arguments, **options)
        started.append(server)
        return server

    yield begin
    for server in started:
        server.stop()


@pytest.fixture
def client(shared_server: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=shared_server.url, timeout=HANG_SECONDS) as http:
        yield http
