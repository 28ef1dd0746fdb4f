"""Stages of `benchmarks.gpu` with encoders in the engine and over HTTP: single texts, batches, and beside streams."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import cache, partial
from statistics import median
from typing import Any

import torch

from benchmarks import random_checkpoints, vocabulary
from benchmarks.contestants import http_server, ours
from benchmarks.contestants.contract import Outcome, Subject, percentile
from benchmarks.gpu.device import Limits
from benchmarks.gpu.engine import random_ids, subject
from benchmarks.gpu.row import Result, Row, Setup, Stage
from benchmarks.gpu.steps import counted
from benchmarks.precisions import model_spec
from benchmarks.random_models import Cost, config_of, layers_cost, random_model
from benchmarks.workloads import Job
from server.engine.process.service import start
from server.ipc.wire.descriptions import EngineOptions
from server.ipc.wire.encode_messages import Encode, EncodeItem, EncodeTask
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.worker_messages import Configure

CALLS = 50
"""Number of calls of which the median is reported."""
CALL_TEXTS = 32
"""Number of texts in one call beside streams, as a client would send them."""
STREAM_TOKENS = 1024
"""Number of new tokens of a stream. The streams must run for longer than the texts take."""
KV_BYTES = 4 << 30


def texts(shape: str) -> Stage:
    """Return the stage that embeds texts in calls of one text and of many, in the engine and over HTTP."""

    def rows_of(setup: Setup, limits: Limits) -> Iterator[Row]:
        checkpoint = cache(partial(_written, shape, "embed", setup, limits))

        @cache
        def engine() -> ours.Entry:
            entry = ours.Entry(limits.device)
            entry.load(checkpoint())
            return entry

        @cache
        def server() -> http_server.Entry:
            entry = http_server.Entry(limits.device)
            entry.load(checkpoint())
            return entry

        @cache
        def floors() -> dict[int, Cost]:
            length = setup.text_tokens
            model = random_model(config_of(shape, setup.tiny), limits.torch_dtype, torch.device("meta"))
            assert model.encoder is not None
            return {n: layers_cost(model, model.encoder, n * length, n * length**2, 0) for n in setup.texts}

        def measure(is_http: bool, count: int) -> Result:
            entry = server() if is_http else engine()
            calls = 2 if setup.tiny else CALLS
            outcome: Outcome = entry.run(_job(shape, setup, count, calls))
            seconds = median(outcome.latencies[len(outcome.latencies) // 5 :])
            rate = f"{count / seconds:,.0f} texts/s"
            if is_http:
                engine_result = setup.done.get(f"{shape}, engine, {counted(count, 'text')}")
                share = None if engine_result is None else engine_result.value / (1e3 * seconds)
                return Result(1e3 * seconds, "ms", seconds, share=share, note=f"{rate}; share of the engine's rate")
            floor = floors()[count].seconds(limits.bytes_per_second, limits.operations_per_second)
            return Result.of_time(seconds, floor, 1e3 * seconds, "ms", rate)

        try:
            for is_http in (False, True):
                for count in setup.texts:
                    how = "HTTP" if is_http else "engine"
                    yield Row(f"{shape}, {how}, {counted(count, 'text')}", partial(measure, is_http, count))
        finally:
            if server.cache_info().currsize:
                server().close()

    return rows_of


def _job(shape: str, setup: Setup, count: int, calls: int) -> Job:
    """A job of `calls` calls with `count` texts each, one after the other."""
    vocab_size = config_of(shape, setup.tiny)["vocab_size"]
    inputs = _ended(random_ids(count * calls, setup.text_tokens - 2, vocab_size, count))
    return Job("embed", inputs, batch=count, counts="texts")


def _ended(given: list[list[int]]) -> list[list[int]]:
    return [[vocabulary.BOS, *ids, vocabulary.EOS] for ids in given]


def _written(shape: str, task: str, setup: Setup, limits: Limits) -> Subject:
    """Write a checkpoint for a task, `embed` or `rank`, and return it."""
    hf = config_of(shape, setup.tiny)
    if task == "rank":
        hf |= {"architectures": ["BertForSequenceClassification"], "num_labels": 1}
    directory = setup.models / f"{shape}-{task}"
    random_checkpoints.write(directory, hf, limits.torch_dtype, limits.torch_device)
    return subject(directory, shape, limits)


def beside_streams(decoder: str, encoder: str) -> Stage:
    """Return the stage that embeds and ranks texts while streams of a decoder are running in the same engine.

    The share is the rate of texts beside the streams, as a part of the rate without streams. The note has the longest
    gaps between two tokens of a stream.
    """

    def rows_of(setup: Setup, limits: Limits) -> Iterator[Row]:
        engine = cache(partial(_Shared, decoder, encoder, setup, limits))
        streams = setup.busy_streams
        for task in ("embed", "rank"):
            alone = f"{encoder}, {task}, {setup.ranked} texts without streams"
            yield Row(alone, partial(lambda task: engine().measure(task, 0), task))
            name = f"{encoder}, {task}, {setup.ranked} texts beside {streams} streams of {decoder}"

            def measure(task: str, alone: str) -> Result:
                found, other = engine().measure(task, streams), setup.done.get(alone)
                share = None if other is None else found.value / other.value
                return Result(found.value, found.unit, share=share, note=found.note)

            yield Row(name, partial(measure, task, alone))

    return rows_of


class _Shared:
    """An engine with a decoder and two encoders, one that embeds and one that ranks."""

    def __init__(self, decoder: str, encoder: str, setup: Setup, limits: Limits) -> None:
        self._setup = setup
        self._vocab = config_of(decoder, setup.tiny)["vocab_size"], config_of(encoder, setup.tiny)["vocab_size"]
        directory = setup.models / decoder
        random_checkpoints.write(directory, config_of(decoder, setup.tiny), limits.torch_dtype, limits.torch_device)
        directories = {"streams": str(directory)}
        directories |= {task: _written(encoder, task, setup, limits).directory for task in ("embed", "rank")}
        specs = [model_spec(name, path, limits.dtype) for name, path in directories.items()]
        options = EngineOptions(threads=torch.get_num_threads(), kv_cache_bytes=64 << 20 if setup.tiny else KV_BYTES)
        self._engine, _ = start(Configure(1, limits.device, specs, options), lambda progress: None)
        self._ids = itertools.count(1)

    def measure(self, task: str, streams: int) -> Result:
        """Rate of texts for a task, `embed` or `rank`, while a number of streams are running."""
        setup, engine = self._setup, self._engine
        latest: dict[int, float] = {}
        gaps: list[float] = []
        prompts = random_ids(streams, setup.prompt, self._vocab[0], next(self._ids))
        for prompt in prompts:
            row = GenerateRow(next(self._ids), 4 if setup.tiny else STREAM_TOKENS)
            engine.add(Generate("streams", GenerationParams(), [prompt], [row]))
            latest[row.sequence_id] = 0.0
        while not all(latest.values()):
            self._step(latest, [])
        items = [EncodeItem(ids) for ids in _ended(self._random_texts(setup.ranked))]
        kind: EncodeTask = "embed" if task == "embed" else "classify"
        started, left = time.perf_counter(), len(items)
        for first in range(0, len(items), CALL_TEXTS):
            engine.add(Encode(next(self._ids), task, kind, items[first : first + CALL_TEXTS]))
        while left:
            left -= self._step(latest, gaps)
        seconds = time.perf_counter() - started
        for sequence_id in latest:
            engine.abort(sequence_id)
        while engine.has_work:
            engine.step()
        note = f"gaps of the streams: p99 {1e3 * percentile(sorted(gaps), 0.99):.1f} ms" if gaps else ""
        return Result(len(items) / seconds, "texts/s", note=note)

    def _random_texts(self, count: int) -> list[list[int]]:
        return random_ids(count, self._setup.text_tokens - 2, self._vocab[1], next(self._ids))

    def _step(self, latest: dict[int, float], gaps: list[float]) -> int:
        """Run a step. Returns the number of texts that it completed.

        latest: time of the latest token of each stream in seconds; updated.
        gaps: list to which the times between two tokens of a stream are added, in seconds.
        """
        output: Any = self._engine.step()
        now = time.perf_counter()
        if output is None:
            return 0
        if output.failed:
            raise RuntimeError(output.failed[0].message)
        for event in (*output.tokens, *output.finished):
            if latest.get(event.sequence_id):
                gaps.append(now - latest[event.sequence_id])
            latest[event.sequence_id] = now
        return len(output.encoded)
