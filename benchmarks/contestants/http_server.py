"""Triptych over HTTP: a `triptych serve` process, with streamed answers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.contestants.contract import Outcome, Refused, Subject
from benchmarks.contestants.ours import KV_BYTES
from benchmarks.http_client import send_all
from benchmarks.memory import children, cpu_seconds, resident_bytes
from benchmarks.precisions import DTYPES
from benchmarks.workloads import Job
from server.ipc.wire.descriptions import DeviceChoice
from server.system.child import die_with_parent


class Entry:
    """A Triptych server for one model.

    device: `cpu` or `cuda`. kv_bytes: memory for the KV cache in bytes, None for the default of the server.
    flags: further flags of the server.
    """

    def __init__(
        self, device: DeviceChoice = "cpu", kv_bytes: int | None = KV_BYTES, flags: Sequence[str] = ()
    ) -> None:
        self._device, self._kv_bytes, self._flags = device, kv_bytes, flags

    def load(self, subject: Subject) -> dict[str, Any]:
        if subject.isa is not None:
            raise Refused("not run: a server always uses the best instruction set of the processor")
        self._subject = subject
        self._server = Server(subject, self._device, self._kv_bytes, self._flags)
        self._server.wait()
        with urllib.request.urlopen(f"http://127.0.0.1:{self._server.port}/info") as answer:
            (model,) = json.load(answer)["models"]
        return {"ready_seconds": self._server.ready_seconds, "served": model["name"]}

    def run(self, job: Job) -> Outcome:
        if job.kind == "start":
            return self._start(job)
        main = self._server.process.pid
        (worker,) = self._server.workers()
        used = {"http": cpu_seconds(main), "worker": cpu_seconds(worker)}
        outcome = self._run(job)
        outcome.extra["http_cpu_seconds"] = cpu_seconds(main) - used["http"]
        outcome.extra["worker_cpu_seconds"] = cpu_seconds(worker) - used["worker"]
        outcome.extra["rss_bytes"] = resident_bytes(worker)
        outcome.extra["http_rss_bytes"] = resident_bytes(main)
        return outcome

    def _run(self, job: Job) -> Outcome:
        calls = list(self._calls(job))
        answers, seconds = send_all(self._server.port, [(route, body) for route, body, _ in calls], job.in_flight)
        outcome = Outcome(seconds)
        for answer, (_, _, units) in zip(answers, calls, strict=True):
            if job.kind == "embed":
                assert len(json.loads(answer.body)) == units
                outcome.texts += units
                outcome.latencies.append(answer.ended - answer.started)
                continue
            outcome.tokens += answer.completion_tokens
            if job.in_flight == 1:
                outcome.latencies.append(answer.ended - answer.started)
            outcome.first_seconds += [moment - answer.started for moment in answer.times[:1]]
            outcome.gaps += [after - before for before, after in pairwise(answer.times)]
            if job.beams == 1:
                # A busy server puts several tokens into one event; they arrive at the same moment.
                outcome.gaps += [0.0] * (answer.completion_tokens - len(answer.times))
        outcome.extra["events"] = sum(len(answer.times) for answer in answers)
        return outcome

    def _calls(self, job: Job) -> Iterator[tuple[str, bytes, int]]:
        """Yield the HTTP requests of a job: route, JSON body, and number of texts or prompts in it."""
        if job.kind == "embed":
            for start in range(0, len(job.inputs), job.batch):
                texts = job.inputs[start : start + job.batch]
                yield "/embed", _json({"inputs": texts}), len(texts)
            return
        for prompt, new in zip(job.inputs, job.new_tokens, strict=True):
            body = {"prompt": prompt, "max_new_tokens": new, "ignore_eos": True, "stream": True}
            body |= {"num_beams": job.beams, "do_sample": False}
            yield "/generate", _json(body), 1

    def _start(self, job: Job) -> Outcome:
        """Restart the server, and measure its start.

        The outcome has the time until the server is ready, the durations of the first and the tenth request, and the
        time until a server with the demo models is ready.
        """
        self._server.stop()
        self._server = Server(self._subject, self._device, self._kv_bytes, self._flags)
        self._server.wait()
        one = Job("generate", job.inputs, job.new_tokens)
        seconds = [self._run(one).seconds for _ in range(10)]
        extra = {"ready_seconds": self._server.ready_seconds, "first_request_seconds": seconds[0]}
        demo = Server(None, self._device, self._kv_bytes)
        try:
            demo.wait()
        finally:
            demo.stop()
        extra |= {"tenth_request_seconds": seconds[9], "demo_ready_seconds": demo.ready_seconds}
        return Outcome(self._server.ready_seconds, tokens=sum(job.new_tokens), extra=extra)

    def close(self) -> None:
        self._server.stop()


class Server:
    """A Triptych server process. The constructor starts it.

    subject: the model to serve, or None for the demo models.
    device: `cpu` or `cuda`.
    kv_bytes: memory for the KV cache in bytes, None for the default of the server; not used for the demo models.
    flags: further flags; not used for the demo models.
    environment: further environment variables.
    port: TCP port, known after `wait`.
    """

    port: int

    def __init__(
        self,
        subject: Subject | None,
        device: DeviceChoice,
        kv_bytes: int | None,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        command = [sys.executable, "-m", "server.cli", "serve", "--port", "0", "--log-level", "warning"]
        command += ["--device", device]
        if subject is not None:
            flag = "--dtype" if subject.precision in DTYPES else "--quantize"
            command += [f"m={subject.directory}", flag, subject.precision, "--threads", str(subject.threads)]
            command += ["--no-access-log", *flags]
            if kv_bytes is not None:
                command += ["--kv-cache-memory", str(kv_bytes)]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self.ready_seconds = 0.0
        self._started = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            env=os.environ | (environment or {}),
            stdout=self._log,
            stderr=self._log,
            preexec_fn=die_with_parent,
        )

    def wait(self, seconds: float = 180) -> None:
        """Wait until the server has printed its address and answers /ready with 200.

        Raises RuntimeError, with the end of its output, if it stops or is not ready after `seconds`.
        """
        while self.process.poll() is None and time.perf_counter() - self._started < seconds:
            if found := re.search(r"ready on http://127\.0\.0\.1:(\d+) ", self._output()):
                self.port = int(found[1])
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=5).close()
                self.ready_seconds = time.perf_counter() - self._started
                return
            time.sleep(0.02)
        raise RuntimeError(f"the server is not ready: {self._output()[-250:]}")

    def _output(self) -> str:
        """Output of the server so far. It is read with `pread`, because the server process shares the file position."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    def workers(self) -> list[int]:
        found = children(self.process.pid)
        return [pid for pid in found if b"server.engine.process.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
