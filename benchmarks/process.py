"""Run a contestant in its own process, and exchange JSON lines with it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from server.system.child import die_with_parent

REPOSITORY = Path(__file__).resolve().parents[1]


class Failed(Exception):
    """A contestant failed or did not answer in time. The message is one line."""


class ContestantProcess:
    """The process of a contestant. The constructor starts it; the first request must load a model.

    name: name of the contestant.
    python: Python interpreter of the contestant's environment.
    threads: number of threads for its computations.
    """

    def __init__(self, name: str, python: str, threads: int) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        environment = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": str(REPOSITORY),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.contestants", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            cwd=REPOSITORY,
            preexec_fn=die_with_parent,
        )

    def send(self, request: dict[str, Any]) -> None:
        """Send a request. Raises Failed if the process has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise Failed(self._exit_message()) from None

    def receive(self, seconds: float) -> dict[str, Any]:
        """Wait up to `seconds` for the answer to a request.

        Raises Failed if the answer is an error, if the process ends, and if no answer arrives in time.
        """
        assert self._process.stdout is not None
        give_up = time.monotonic() + seconds
        ready, _, _ = select.select([self._process.stdout], [], [], max(give_up - time.monotonic(), 0.1))
        if not ready:
            self._process.kill()
            raise Failed(f"no answer within {seconds:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise Failed(self._exit_message())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def _exit_message(self) -> str:
        self._process.wait(10)
        self._log.seek(0)
        lines = [line for line in self._log.read().splitlines() if line.strip()]
        return f"ended with {self._process.returncode}: {lines[-1] if lines else 'no message'}"[:300]

    def close(self) -> None:
        """Close the input of the process so that it ends. It is killed if it has not ended after 30 seconds."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(30)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._log.close()
