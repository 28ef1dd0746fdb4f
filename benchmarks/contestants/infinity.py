"""The embedding server infinity, over HTTP.

It needs older versions of packages that other peers use. Therefore it has a separate environment, in the directory
`infinity` inside the environment of the peers.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks import vocabulary
from benchmarks.checkpoints import SHAPES
from benchmarks.contestants.contract import Outcome, Refused, Subject
from benchmarks.contestants.peer_server import PeerServer
from benchmarks.http_client import send_all
from benchmarks.workloads import Job

PROGRAM = "infinity/bin/infinity_emb"


class Entry:
    """An infinity server for one encoder. int8 is refused."""

    def load(self, subject: Subject) -> dict[str, Any]:
        if SHAPES[subject.shape].kind != "encoder":
            raise Refused("used for encoders")
        if subject.precision == "int8":
            raise Refused("no int8 for such a model on a CPU")
        program = Path(subject.program or Path(sys.prefix) / PROGRAM)
        if not program.exists():
            raise Refused("it is not installed")
        command = [str(program), "v2", "--model-id", subject.directory, "--served-model-name", "m", "--device", "cpu"]
        command += ["--engine", "torch", "--dtype", subject.precision, "--no-bettertransformer"]
        command += ["--log-level", "error"]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["INFINITY_ANONYMOUS_USAGE_STATS"] = "0"
        self._server = PeerServer(command, environment)
        return {"ready_seconds": self._server.wait()}

    def run(self, job: Job) -> Outcome:
        texts = [vocabulary.text(ids[1:-1]) for ids in job.inputs]
        inputs = [texts[start : start + job.batch] for start in range(0, len(texts), job.batch)]
        calls = [("/embeddings", json.dumps({"model": "m", "input": some}).encode()) for some in inputs]
        answers, seconds = send_all(self._server.port, calls, job.in_flight)
        outcome = Outcome(seconds, latencies=[answer.ended - answer.started for answer in answers])
        outcome.texts = sum(len(json.loads(answer.body)["data"]) for answer in answers)
        return outcome

    def close(self) -> None:
        self._server.close()
