"""llama.cpp's server, if its path is given (`--llama-cpp`), asked over HTTP like ours; not streamed.

Its models have a format of their own: `made/SHAPE/PRECISION.gguf` under the checkpoints, int8 being its Q8_0.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.contestants.contract import Outcome, Refused, Subject
from benchmarks.http_client import ask_all, free_port
from benchmarks.workloads import Job

SLOTS, SLOT_TOKENS = 16, 1024


class Entry:
    """A server of its own for the model, with sixteen slots and without its prompt cache."""

    def load(self, subject: Subject) -> dict[str, Any]:
        if subject.program is None:
            raise Refused("not run: no path to llama-server was given")
        model = Path(subject.made) / f"{subject.precision}.gguf"
        if not model.exists():
            raise Refused(f"not run: there is no {model.name} in {model.parent.name}")
        self._port = free_port()
        command = [subject.program, "-m", str(model), "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["-t", str(subject.threads), "-np", str(SLOTS), "-c", str(SLOTS * SLOT_TOKENS)]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        started = time.perf_counter()
        while self._process.poll() is None and time.perf_counter() - started < 120:
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=5).close()
                return {"ready_seconds": time.perf_counter() - started}
            time.sleep(0.1)
        self._log.seek(0)
        raise RuntimeError(f"the server is not ready: {self._log.read()[-250:]}")

    def run(self, job: Job) -> Outcome:
        calls = []
        for prompt, new in zip(job.inputs, job.new_tokens, strict=True):
            body = {"prompt": prompt, "n_predict": new, "ignore_eos": True, "temperature": 0}
            body |= {"cache_prompt": False, "stream": False}
            calls.append(("/completion", json.dumps(body).encode()))
        answers, seconds = ask_all(self._port, calls, job.in_flight)
        return Outcome(seconds, tokens=sum(int(json.loads(answer.body)["tokens_predicted"]) for answer in answers))

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
