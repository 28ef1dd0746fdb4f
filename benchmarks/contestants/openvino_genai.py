"""OpenVINO GenAI with continuous batching. This module calls `step` itself, to record the time of every token.

optimum-intel converts the model in a separate environment, because it needs other package versions. For float32 and
bfloat16, computation and cache have that dtype. For int8 and int4, the weights have that many bits
(`openvino_files.COMPRESSION`), and the library chooses the other dtypes.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai

from benchmarks.checkpoints import SHAPES
from benchmarks.contestants.contract import Outcome, Refused, Subject
from benchmarks.contestants.openvino_files import exported, properties
from benchmarks.workloads import Job


class Entry:
    """A ContinuousBatchingPipeline without prefix caching, with a cache of 1 GB like Triptych in these benchmarks."""

    def load(self, subject: Subject) -> dict[str, Any]:
        if SHAPES[subject.shape].kind != "decoder":
            raise Refused("continuous batching is for decoders")
        directory = exported(subject)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1
        scheduler.enable_prefix_caching = False
        settings = properties(subject)
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(directory), scheduler, "CPU", settings)
        self._next_id = 0
        return {"version": openvino_genai.__version__}

    def run(self, job: Job) -> Outcome:
        outcome = Outcome(0.0)
        waiting = list(zip(job.inputs, job.new_tokens, strict=True))[::-1]
        running: dict[Any, list[float]] = {}
        started = time.perf_counter()
        while waiting or running:
            while waiting and len(running) < job.in_flight:
                prompt, new_tokens = waiting.pop()
                settings = openvino_genai.GenerationConfig()
                settings.max_new_tokens, settings.ignore_eos, settings.do_sample = new_tokens, True, False
                tensor = ov.Tensor(np.array([prompt], dtype=np.int64))
                self._next_id += 1
                handle = self._pipeline.add_request(self._next_id, tensor, settings)
                running[handle] = [time.perf_counter()]
            self._pipeline.step()
            now = time.perf_counter()
            for handle, times in list(running.items()):
                while handle.can_read():
                    count = sum(len(output.generated_ids) for output in handle.read().values())
                    outcome.tokens += count
                    times += [now] * count
                if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                    _add_times(outcome, running.pop(handle))
        outcome.seconds = time.perf_counter() - started
        return outcome

    def close(self) -> None:
        """Does nothing, because this contestant starts no other process."""


def _add_times(outcome: Outcome, times: list[float]) -> None:
    """Add the latencies of a request to the outcome. times: time of sending, then time of each token, in seconds."""
    outcome.first_seconds += [moment - times[0] for moment in times[1:2]]
    outcome.gaps += [after - before for before, after in itertools.pairwise(times[1:])]
