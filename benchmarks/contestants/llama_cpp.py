"""The server of llama.cpp (`--llama-cpp`), over HTTP, without streaming.

Its models are in GGUF format, in `made/SHAPE/PRECISION.gguf` in the checkpoint directory; int8 means Q8_0.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.contestants.contract import Outcome, Refused, Subject
from benchmarks.contestants.peer_server import PeerServer
from benchmarks.http_client import send_all
from benchmarks.workloads import Job

SLOTS, SLOT_TOKENS = 16, 1024


class Entry:
    """A server for one model, with sixteen slots and without its prompt cache."""

    def load(self, subject: Subject) -> dict[str, Any]:
        if subject.program is None:
            raise Refused("not run: no path to llama-server was given")
        model = Path(subject.made) / f"{subject.precision}.gguf"
        if not model.exists():
            raise Refused(f"not run: there is no {model.name} in {model.parent.name}")
        command = [subject.program, "-m", str(model)]
        command += ["-t", str(subject.threads), "-np", str(SLOTS), "-c", str(SLOTS * SLOT_TOKENS)]
        self._server = PeerServer(command)
        return {"ready_seconds": self._server.wait()}

    def run(self, job: Job) -> Outcome:
        calls = []
        for prompt, new in zip(job.inputs, job.new_tokens, strict=True):
            body = {"prompt": prompt, "n_predict": new, "ignore_eos": True, "temperature": 0}
            body |= {"cache_prompt": False, "stream": False}
            calls.append(("/completion", json.dumps(body).encode()))
        answers, seconds = send_all(self._server.port, calls, job.in_flight)
        return Outcome(seconds, tokens=sum(int(json.loads(answer.body)["tokens_predicted"]) for answer in answers))

    def close(self) -> None:
        self._server.close()
