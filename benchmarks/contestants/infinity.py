"""infinity's server for embeddings, asked over HTTP by as many clients as are in flight, one text each.

It asks for older versions of what the other peers use: its environment lies inside theirs.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks import vocabulary
from benchmarks.checkpoints import SHAPES
from benchmarks.contestants.contract import Outcome, Refused, Subject
from benchmarks.http_client import ask_all, free_port
from benchmarks.workloads import Job

PROGRAM = "infinity/bin/infinity_emb"


class Entry:
    """A server of its own for the model."""

    def load(self, subject: Subject) -> dict[str, Any]:
        if SHAPES[subject.shape].kind != "encoder":
            raise Refused("used for encoders")
        if subject.precision == "int8":
            raise Refused("no int8 for such a model on a CPU")
        program = Path(subject.program or Path(sys.prefix) / PROGRAM)
        if not program.exists():
            raise Refused("it is not installed")
        self._port = free_port()
        command = [str(program), "v2", "--model-id", subject.directory, "--served-model-name", "m", "--device", "cpu"]
        command += ["--engine", "torch", "--dtype", subject.precision, "--no-bettertransformer"]
        command += ["--host", "127.0.0.1", "--port", str(self._port), "--log-level", "error"]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["INFINITY_ANONYMOUS_USAGE_STATS"] = "0"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=environment)
        started = time.perf_counter()
        while self._process.poll() is None and time.perf_counter() - started < 120:
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=5).close()
                return {"ready_seconds": time.perf_counter() - started}
            time.sleep(0.1)
        self._log.seek(0)
        raise RuntimeError(f"the server is not ready: {self._log.read()[-250:]}")

    def run(self, job: Job) -> Outcome:
        texts = [vocabulary.text(ids[1:-1]) for ids in job.inputs]
        inputs = [texts[start : start + job.batch] for start in range(0, len(texts), job.batch)]
        calls = [("/embeddings", json.dumps({"model": "m", "input": some}).encode()) for some in inputs]
        answers, seconds = ask_all(self._port, calls, job.in_flight)
        outcome = Outcome(seconds, latencies=[answer.ended - answer.began for answer in answers])
        outcome.texts = sum(len(json.loads(answer.body)["data"]) for answer in answers)
        return outcome

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
