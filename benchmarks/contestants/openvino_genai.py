"""OpenVINO GenAI's continuous batching, stepped here, so that its tokens are seen as they come.

The model is converted by optimum-intel, in an environment of its own since it asks for other versions. float32 and
bfloat16 compute and cache in that dtype; int8 has rounded weights and the library's own choice of the rest.
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
    """A ContinuousBatchingPipeline. Prefix caching is off; the cache has a gigabyte, as ours."""

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
        under_way: dict[Any, list[float]] = {}
        started = time.perf_counter()
        while waiting or under_way:
            while waiting and len(under_way) < job.in_flight:
                prompt, new_tokens = waiting.pop()
                settings = openvino_genai.GenerationConfig()
                settings.max_new_tokens, settings.ignore_eos, settings.do_sample = new_tokens, True, False
                tensor = ov.Tensor(np.array([prompt], dtype=np.int64))
                self._next_id += 1
                handle = self._pipeline.add_request(self._next_id, tensor, settings)
                under_way[handle] = [time.perf_counter()]
            self._pipeline.step()
            now = time.perf_counter()
            for handle, times in list(under_way.items()):
                while handle.can_read():
                    count = sum(len(output.generated_ids) for output in handle.read().values())
                    outcome.tokens += count
                    times += [now] * count
                if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                    _book(outcome, under_way.pop(handle))
        outcome.seconds = time.perf_counter() - started
        return outcome

    def close(self) -> None:
        """All in this process."""


def _book(outcome: Outcome, times: list[float]) -> None:
    """The moments of a request: when it was sent, then each of its tokens."""
    outcome.first_seconds += [moment - times[0] for moment in times[1:2]]
    outcome.gaps += [after - before for before, after in itertools.pairwise(times[1:])]
