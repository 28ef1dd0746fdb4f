"""The library of llama.cpp in this process (`--llama-library`), with continuous batching and without HTTP.

int8 means Q8_0, int4 means Q4_0 (Q4_K_M in `llama_library_k.py`). `benchmarks.llama_files` writes the GGUF files.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import llama_files
from benchmarks.checkpoints import SHAPES
from benchmarks.contestants.contract import Outcome, Refused, Subject
from benchmarks.llama_library import LlamaModel, Row, instructions
from benchmarks.workloads import Job

SEQUENCES, SEQUENCE_TOKENS = 16, 1024
STEP_TOKENS, COMPUTED_TOKENS = 2048, 512
"""Largest numbers of tokens in a step, and in a part of a step that is computed at once: the defaults of llama.cpp."""


@dataclass
class _Stream:
    """A running request.

    sequence: index of its sequence in the context. position, token: position and id of its last token.
    left: number of tokens still to generate. sent: time at which the request was sent.
    latest: time of the latest token, 0 before the first one.
    """

    sequence: int
    position: int
    token: int
    left: int
    sent: float
    latest: float = 0.0


class Entry:
    """A context of llama.cpp with 16 sequences for one model. int4_format: format of the 4-bit file."""

    int4_format = "Q4_0"

    def load(self, subject: Subject) -> dict[str, Any]:
        if subject.program is None:
            raise Refused("not run: no folder with the library of llama.cpp was given")
        format_name = {"int8": "Q8_0", "int4": self.int4_format}.get(subject.precision)
        if format_name is None or SHAPES[subject.shape].architecture not in ("LlamaForCausalLM", "Qwen3MoeForCausalLM"):
            raise Refused("not run: only LLaMA and Qwen3-MoE in int8 and int4")
        folder, file = Path(subject.program), Path(subject.made) / f"library-{format_name}.gguf"
        if not file.exists():
            llama_files.write(Path(subject.directory), file, format_name, folder)
        started = time.perf_counter()
        self._model = LlamaModel(
            folder,
            file,
            SHAPES[subject.shape].vocab_size,
            subject.threads,
            SEQUENCES * SEQUENCE_TOKENS,
            STEP_TOKENS,
            COMPUTED_TOKENS,
            SEQUENCES,
        )
        ready = time.perf_counter() - started
        return {"ready_seconds": ready, "file_bytes": os.path.getsize(file), "instructions": instructions(folder)}

    def run(self, job: Job) -> Outcome:
        assert job.kind == "generate" and job.beams == 1
        model, outcome = self._model, Outcome(0.0)
        waiting = list(zip(job.inputs, job.new_tokens, strict=True))[::-1]
        free = list(range(min(SEQUENCES, job.in_flight)))
        running: list[_Stream] = []
        model.clear()
        started = time.perf_counter()
        while waiting or running:
            rows = [Row(stream.token, stream.position, stream.sequence, True) for stream in running]
            ends = list(range(len(rows)))
            while waiting and free and len(rows) + len(waiting[-1][0]) <= STEP_TOKENS:
                prompt, new = waiting.pop()
                stream = _Stream(free.pop(), len(prompt) - 1, 0, new, time.perf_counter())
                last = len(prompt) - 1
                rows += [Row(token, place, stream.sequence, place == last) for place, token in enumerate(prompt)]
                ends.append(len(rows) - 1)
                running.append(stream)
            model.step(rows)
            for stream, end in zip(running, ends, strict=True):
                stream.token = int(model.logits(end).argmax())
                self._count(stream, outcome)
            for stream in running:
                if not stream.left:
                    model.forget(stream.sequence)
                    free.append(stream.sequence)
            running = [stream for stream in running if stream.left]
        outcome.seconds = time.perf_counter() - started
        return outcome

    @staticmethod
    def _count(stream: _Stream, outcome: Outcome) -> None:
        """Add a new token of a stream, and its latency, to the outcome."""
        now = time.perf_counter()
        if stream.latest:
            outcome.gaps.append(now - stream.latest)
        else:
            outcome.first_seconds.append(now - stream.sent)
        outcome.tokens += 1
        stream.latest = now
        stream.position, stream.left = stream.position + 1, stream.left - 1

    def close(self) -> None:
        """Does nothing, because this contestant starts no other process."""
