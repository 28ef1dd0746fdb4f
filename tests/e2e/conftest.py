"""Fixtures that run `triptych serve` with the demo models in a separate process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.waiting import HANG_SECONDS, eventually
from tests.warm_processes import WarmProcess

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class RunningServer:
    """A server process. log: file with its output. url: empty until the server is ready."""

    process: subprocess.Popen[bytes] | WarmProcess
    log: Path
    url: str = ""

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=HANG_SECONDS, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, timeout=HANG_SECONDS, **more)

    def metric(self, name: str, **labels: str) -> float:
        """Sum of all samples of a metric with these labels. Fails if the server has no such metric."""
        page = self.get("/metrics").text
        assert f"# TYPE {name} " in page, f"no metric {name}"
        total = 0.0
        for line in page.splitlines():
            sample, _, value = line.rpartition(" ")
            named = sample == name or sample.startswith(name + "{")
            if named and all(f'{label}="{text}"' in sample for label, text in labels.items()):
                total += float(value)
        return total

    def worker(self) -> psutil.Process:
        server = psutil.Process(self.process.pid)
        # A forked worker has the command line of its server.
        (child,) = (
            child for child in server.children() if "--fd" in child.cmdline() or child.cmdline() == server.cmdline()
        )
        return child

    def wait_ready(self) -> None:
        eventually(self._is_ready)

    def _is_ready(self) -> bool:
        log = self.log.read_text()
        assert self.process.poll() is None, f"the server exited with {self.process.returncode}: {log}"
        if not self.url and (found := re.search(r"ready on (http://\S+) ", log)):
            self.url = found[1]
        return bool(self.url) and self.get("/ready").status_code == 200

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(HANG_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise


COMMAND = (sys.executable, "-m", "server.cli")


@contextmanager
def serving(
    log: Path, *arguments: str, command: tuple[str, ...] | None = None, directory: Path = REPOSITORY
) -> Iterator[RunningServer]:
    """Start a server, wait until it is ready, and stop it at the end of the block.

    The server chooses a free port (`--port 0`). Another process could take a port that was chosen here.

    log: file for the output. arguments: arguments of `triptych serve`.
    command: command line that starts the server in a new interpreter. None to fork a warm process, which is faster.
    directory: working directory of the new interpreter.
    """
    arguments = ("serve", *arguments, "--port", "0")
    process: subprocess.Popen[bytes] | WarmProcess
    with log.open("wb") as output:
        if command is None:
            process = WarmProcess(arguments, output.fileno(), output.fileno())
        else:
            process = subprocess.Popen([*command, *arguments], cwd=directory, stdout=output, stderr=subprocess.STDOUT)
    server = RunningServer(process, log)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def demo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that is shared by all tests that do not change it."""
    with serving(tmp_path_factory.mktemp("server") / "log", command=COMMAND) as server:
        yield server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server in a new interpreter for a single test, which may kill processes or send signals."""
    with serving(tmp_path / "log", command=COMMAND) as server:
        yield server


@pytest.fixture
def forked_server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server for a single test, which may kill its worker. It is forked, which is faster than a new interpreter."""
    with serving(tmp_path / "log") as server:
        yield server
