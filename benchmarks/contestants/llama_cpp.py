"""The server of llama.cpp (`--llama-cpp`), over HTTP, without streaming.

Its models are GGUF files, `made/SHAPE/PRECISION.gguf` in the directory of the checkpoints. int8 means Q8_0, int4 means
Q4_0 (Q4_K_M in `llama_cpp_k.py`). A missing file is created with llama.cpp's converter and llama-quantize, if the
server is inside a source tree of llama.cpp.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.contestants.contract import Outcome, Refused, Subject
from benchmarks.contestants.peer_server import PeerServer
from benchmarks.http_client import send_all
from benchmarks.workloads import Job

SLOTS, SLOT_TOKENS = 16, 1024
TYPES = {"float32": "f32", "bfloat16": "bf16", "int8": "q8_0"}
"""Types of matrices that the converter can write, by precision."""

_CONVERT = """
import runpy, sys
root = sys.argv[1]
sys.path[:0] = [root, root + "/gguf-py"]
from conversion import base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
sys.argv[:2] = [root + "/convert_hf_to_gguf.py"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A Python program that runs llama.cpp's converter.

The converter recognises published tokenizers by a hash. For our random checkpoints, this program makes it assume that
tokenizers split texts like GPT-2."""


class Entry:
    """A server of llama.cpp for one model, with 16 slots and without its prompt cache.

    int4_type: type of matrices in the 4-bit file. int4_name: name of that file without `.gguf`.
    """

    int4_type, int4_name = "Q4_0", "int4"

    def load(self, subject: Subject) -> dict[str, Any]:
        if subject.program is None:
            raise Refused("not run: no path to llama-server was given")
        name = self.int4_name if subject.precision == "int4" else subject.precision
        model = Path(subject.made) / f"{name}.gguf"
        if not model.exists():
            convert(subject, model, TYPES.get(subject.precision, self.int4_type))
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


def convert(subject: Subject, model: Path, kind: str) -> None:
    """Write the checkpoint as a GGUF file.

    model: path of the file to write. kind: type of its matrices.
    Raises Refused if the tools are missing or fail.
    """
    assert subject.program is not None
    program, partial = Path(subject.program).resolve(), model.with_suffix(".partial")
    if kind not in TYPES.values():
        # The converter writes no 4-bit types.
        whole = model.with_name("bfloat16.gguf")
        if not whole.exists():
            convert(replace(subject, precision="bfloat16"), whole, TYPES["bfloat16"])
        command = [str(program.with_name("llama-quantize")), str(whole), str(partial), kind]
    else:
        root = next((root for root in program.parents if (root / "convert_hf_to_gguf.py").exists()), None)
        if root is None:
            raise Refused(f"not run: there is no {model.name} in {model.parent.name}, and no converter of llama.cpp")
        command = [sys.executable, "-c", _CONVERT, str(root), subject.directory]
        command += ["--outfile", str(partial), "--outtype", kind]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise Refused(f"not run: {Path(command[0]).name}: {error.strerror}") from error
    if done.returncode or not partial.exists():
        raise Refused(f"not run: no {model.name}: {(done.stderr.splitlines() or ['the converter failed'])[-1]}")
    partial.rename(model)
