"""Run the HTTP server of a peer in its own process, on a free port of this machine."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

READY_SECONDS = 120.0


class PeerServer:
    """The process of a peer's server. The constructor starts it.

    command: command line of the server; `--host` and `--port` are added.
    environment: environment variables of the process, or None to inherit them.
    ready_seconds: time in which the server must become ready.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        self._ready_seconds = ready_seconds
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._started = time.perf_counter()
        self._process = subprocess.Popen([*command, *address], stdout=self._log, stderr=self._log, env=environment)

    def wait(self) -> float:
        """Wait until the server answers /health with 200. Returns the time since its start, in seconds.

        Raises RuntimeError if it ends or is not ready within its time.
        """
        while self._process.poll() is None and time.perf_counter() - self._started < self._ready_seconds:
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                return time.perf_counter() - self._started
            time.sleep(0.1)
        raise RuntimeError(f"the server is not ready: {self.output()[-250:]}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def output(self) -> str:
        """All that the server has printed."""
        self._log.seek(0)
        return self._log.read()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
