"""A real `triptych serve` on the demo models, in a process of its own, as a user starts it."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class RunningServer:
    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def metric(self, name: str, **labels: str) -> float:
        """Sum over the samples of a metric that carry these labels; 0 while a declared metric has none yet."""
        page = httpx.get(f"{self.url}/metrics").text
        assert f"# TYPE {name} " in page, f"no metric {name}"
        total = 0.0
        for line in page.splitlines():
            sample, _, value = line.rpartition(" ")
            named = sample == name or sample.startswith(name + "{")
            if named and all(f'{label}="{wanted}"' in sample for label, wanted in labels.items()):
                total += float(value)
        return total

    def worker(self) -> psutil.Process:
        (child,) = (
            c for c in psutil.Process(self.process.pid).children() if "server.engine.worker" in " ".join(c.cmdline())
        )
        return child

    def wait_ready(self, seconds: float = 120) -> None:
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up:
            assert self.process.poll() is None, (
                f"the server left with {self.process.returncode}: {self.log.read_text()}"
            )
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/ready").status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"not ready within {seconds} s: {self.log.read_text()}")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_server(log: Path, *arguments: str) -> RunningServer:
    port = free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "server.cli", "serve", *arguments, "--port", str(port)],
            cwd=REPOSITORY,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return RunningServer(process, f"http://127.0.0.1:{port}", log)


@pytest.fixture(scope="session")
def demo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The demo models, shared by tests that leave the server as they found it."""
    server = start_server(tmp_path_factory.mktemp("server") / "log")
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RunningServer]:
    """The demo models, for a test that breaks things."""
    server = start_server(tmp_path / "log")
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()
