"""The engine of Triptych in this process, without a server. A loop replaces the socket of the worker process."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

from benchmarks.contestants.contract import Outcome, Refused, Subject
from benchmarks.precisions import model_spec
from benchmarks.workloads import Job
from server.engine.process.host import let_threads_sleep
from server.ipc.wire.descriptions import DeviceChoice, EngineOptions
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.worker_messages import Configure

if TYPE_CHECKING:
    from server.engine.stepping.engine import Engine

KV_BYTES = 1 << 30


class Entry:
    """An engine of Triptych with one model.

    device: `cpu` or `cuda`. kv_bytes: memory for the KV cache, in bytes. rows: largest number of rows of a step.
    engine: the engine; set by `load`.
    """

    engine: Engine

    def __init__(self, device: DeviceChoice = "cpu", kv_bytes: int = KV_BYTES, rows: int = 128) -> None:
        self._device, self._kv_bytes, self._rows = device, kv_bytes, rows

    def load(self, subject: Subject) -> dict[str, Any]:
        let_threads_sleep()
        from models.backends.cpu import library
        from server.engine.process.service import start

        if subject.isa is not None and not library.choose_isa(subject.isa):
            raise Refused(f"not run: there are no kernels for {subject.isa}, or this processor cannot run them")

        self._ids = itertools.count(1)
        spec = model_spec("m", subject.directory, subject.precision)
        options = EngineOptions(threads=subject.threads, kv_cache_bytes=self._kv_bytes, max_batch_rows=self._rows)
        started = time.perf_counter()
        self.engine, (info,) = start(Configure(1, self._device, [spec], options), lambda progress: None)
        self._starts = info.generation.decoder_start_token_ids
        return {
            "ready_seconds": time.perf_counter() - started,
            "parameters": info.parameters,
            "weight_bytes": info.weight_bytes,
            "kv_bytes": info.kv_bytes,
        }

    def run(self, job: Job) -> Outcome:
        return self._generate(job) if job.kind == "generate" else self._embed(job)

    def _generate(self, job: Job) -> Outcome:
        engine, outcome = self.engine, Outcome(0.0)
        waiting = [
            self._request(prompt, new, job.beams) for prompt, new in zip(job.inputs, job.new_tokens, strict=True)
        ]
        waiting.reverse()
        sent: dict[int, float] = {}
        latest: dict[int, float] = {}
        running = 0
        started = time.perf_counter()
        while waiting or running:
            while waiting and running < job.in_flight:
                request = waiting.pop()
                sent[request.rows[0].sequence_id] = time.perf_counter()
                engine.add(request)
                running += 1
            output = engine.step()
            if output is None:
                continue
            now = time.perf_counter()
            for event in output.tokens:
                _add_times(outcome, event.sequence_id, len(event.token_ids), now, sent, latest)
            for end in output.finished:
                outcome.tokens += len(end.hypotheses[0].token_ids)
                running -= 1
                if job.in_flight == 1:
                    outcome.latencies.append(now - sent[end.sequence_id])
            if output.failed:
                raise RuntimeError(output.failed[0].message)
        outcome.seconds = time.perf_counter() - started
        return outcome

    def _request(self, prompt: list[int], new_tokens: int, beams: int) -> Generate:
        params = GenerationParams(num_beams=beams, early_stopping=False)
        row = GenerateRow(next(self._ids), new_tokens, decoder_token_ids=list(self._starts))
        return Generate("m", params, [prompt], [row])

    def _embed(self, job: Job) -> Outcome:
        calls = [job.inputs[start : start + job.batch] for start in range(0, len(job.inputs), job.batch)]
        calls.reverse()
        engine, outcome = self.engine, Outcome(0.0)
        open_items: dict[int, int] = {}
        sent: dict[int, float] = {}
        started = time.perf_counter()
        while calls or open_items:
            while calls and len(open_items) < job.in_flight:
                texts, sequence_id = calls.pop(), next(self._ids)
                open_items[sequence_id], sent[sequence_id] = len(texts), time.perf_counter()
                engine.add(Encode(sequence_id, "m", "embed", [EncodeItem(ids) for ids in texts]))
            output = engine.step()
            if output is None:
                continue
            for item in output.encoded:
                outcome.texts += 1
                open_items[item.sequence_id] -= 1
                if not open_items[item.sequence_id]:
                    del open_items[item.sequence_id]
                    outcome.latencies.append(time.perf_counter() - sent[item.sequence_id])
            if output.failed:
                raise RuntimeError(output.failed[0].message)
        outcome.seconds = time.perf_counter() - started
        return outcome

    def close(self) -> None:
        """Does nothing, because this contestant starts no other process."""


def _add_times(
    outcome: Outcome, request: int, count: int, now: float, sent: dict[int, float], latest: dict[int, float]
) -> None:
    """Add to the outcome the latencies of `count` tokens that a request received at the same time.

    request: id of the request. now: time at which the tokens were received, in seconds.
    sent: time at which each request was sent, by id.
    latest: time of the latest token of each request, by id; updated.
    """
    if request not in latest:
        outcome.first_seconds.append(now - sent[request])
    else:
        outcome.gaps.append(now - latest[request])
    outcome.gaps += [0.0] * (count - 1)
    latest[request] = now
