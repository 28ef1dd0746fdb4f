"""OpenVINO with padded batches, for encoders."""

from __future__ import annotations

import time
from typing import Any

import openvino as ov

from benchmarks.checkpoints import SHAPES
from benchmarks.contestants.batches import text_batches
from benchmarks.contestants.contract import Outcome, Refused, Subject
from benchmarks.contestants.openvino_files import exported, properties
from benchmarks.contestants.pooling import padded, vectors
from benchmarks.workloads import Job


class Entry:
    """A compiled model with dynamic batch size and length. It runs one call at a time."""

    def load(self, subject: Subject) -> dict[str, Any]:
        if SHAPES[subject.shape].kind != "encoder":
            raise Refused("used for encoders; openvino-genai has the decoders")
        settings = properties(subject)
        settings.pop("KV_CACHE_PRECISION", None)
        core = ov.Core()
        self._model = core.compile_model(str(exported(subject) / "openvino_model.xml"), "CPU", settings)
        self._names = {name for port in self._model.inputs for name in port.names}
        return {"version": ov.__version__}

    def run(self, job: Job) -> Outcome:
        outcome, started = Outcome(0.0), time.perf_counter()
        for indices in text_batches(job):
            begun = time.perf_counter()
            ids, mask = padded([job.inputs[index] for index in indices])
            inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids}
            found = self._model({name: value for name, value in inputs.items() if name in self._names})
            outcome.texts += len(vectors(found["last_hidden_state"], mask))
            outcome.latencies.append(time.perf_counter() - begun)
        outcome.seconds = time.perf_counter() - started
        return outcome

    def close(self) -> None:
        """Does nothing, because this contestant starts no other process."""
