"""Stage of `benchmarks.gpu` with streams: steps of the model alone, in the engine, and over HTTP."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import random_checkpoints, vocabulary
from benchmarks.contestants import http_server, ours
from benchmarks.contestants.contract import Outcome, Subject, percentile
from benchmarks.gpu.device import Limits
from benchmarks.gpu.row import Result, Row, Setup, Stage
from benchmarks.gpu.steps import counted, seconds_per_decode_step
from benchmarks.random_models import BLOCK_SIZE, Cost, config_of, decode_cost, random_model
from benchmarks.workloads import Job
from models.checkpoint.pack_weights import WeightPacker
from models.steps.kv_cache import KVCache
from models.transformer import Transformer
from server.engine.stepping.engine import Engine

MIN_ROWS = 128
"""Default of `--max-batch-rows`. The engine and the server are never given a smaller limit."""


def streams(shape: str) -> Stage:
    """Return the stage that decodes streams of a model with this shape: alone, in the engine, and over HTTP.

    Shares: the rate of the step alone as a share of the limits of the device, the decode rate of the engine as a share
    of the step's, and the tokens over HTTP as a share of those in the engine.
    """

    def rows_of(setup: Setup, limits: Limits) -> Iterator[Row]:
        phases = _Phases(shape, setup, limits)
        try:
            yield from _step_rows(shape, setup, phases)
            yield from _engine_rows(shape, setup, phases)
            yield from _http_rows(shape, setup, phases)
        finally:
            phases.close()

    return rows_of


def _step_rows(shape: str, setup: Setup, phases: _Phases) -> Iterator[Row]:
    for rows in setup.streams:
        yield Row(_step_name(shape, rows, setup), partial(phases.step, rows))


def _step_name(shape: str, rows: int, setup: Setup) -> str:
    return f"{shape}, step of the model alone, {counted(rows, 'row')}, context {_context(setup)}"


def _context(setup: Setup) -> int:
    """Mean number of tokens of a stream while it is decoded."""
    return setup.prompt + setup.new // 2


def _engine_rows(shape: str, setup: Setup, phases: _Phases) -> Iterator[Row]:
    for count in setup.streams:

        def decode(count: int) -> Result:
            rate = decode_rate(phases.engine_outcome(count), count)
            step = setup.done.get(_step_name(shape, count, setup))
            return Result(rate, "tokens/s", share=None if step is None else rate / step.value, note="of the step alone")

        yield Row(f"{shape}, engine, {counted(count, 'stream')}", partial(decode, count))
        yield Row(_requests_name(shape, count), partial(_requests, phases.engine_outcome, count, setup))
        yield Row(
            f"{shape}, engine, first tokens of {counted(count, 'prompt')} at once",
            partial(_first_tokens, phases.engine_outcome, count),
        )
        yield Row(f"{shape}, engine, host time of a step, {counted(count, 'row')}", partial(phases.host_time, count))
    for tokens in setup.prompts:
        yield Row(f"{shape}, engine, first token of a prompt of {tokens} tokens", partial(phases.prompt, tokens))


def _http_rows(shape: str, setup: Setup, phases: _Phases) -> Iterator[Row]:
    for count in setup.streams:

        def rate(count: int) -> Result:
            found = _requests(phases.http_outcome, count, setup)
            engine = setup.done.get(_requests_name(shape, count))
            share = None if engine is None else found.value / engine.value
            return Result(found.value, found.unit, share=share, note="of the engine")

        yield Row(f"{shape}, HTTP, {counted(count, 'stream')}", partial(rate, count))
        yield Row(
            f"{shape}, HTTP, first tokens of {counted(count, 'prompt')} at once",
            partial(_first_tokens, phases.http_outcome, count),
        )


def _requests_name(shape: str, count: int) -> str:
    return f"{shape}, engine, {counted(count, 'request')}"


def _requests(run: Callable[[int], Outcome], count: int, setup: Setup) -> Result:
    outcome = run(count)
    return Result(outcome.tokens / outcome.seconds, "tokens/s", note=f"{setup.prompt} + {setup.new} tokens each")


def _first_tokens(run: Callable[[int], Outcome], count: int) -> Result:
    """Milliseconds until the last of `count` streams has its first token. All prompts arrive at once."""
    seconds = sorted(run(count).first_seconds)
    return Result(1e3 * seconds[-1], "ms", note=f"the last one; median {1e3 * percentile(seconds, 0.5):.1f} ms")


class _Phases:
    """Runs the model alone, then the engine, then the server.

    Each is started when it is first used. The memory of the previous one is freed before.
    """

    def __init__(self, shape: str, setup: Setup, limits: Limits) -> None:
        self._shape, self._setup, self._limits = shape, setup, limits
        self._hf = config_of(shape, setup.tiny)
        self._alone: tuple[Transformer, dict[int, Cost]] | None = None
        self._engine: ours.Entry | None = None
        self._server: http_server.Entry | None = None
        self.engine_outcome = cache(self._engine_outcome)
        self.http_outcome = cache(self._http_outcome)

    def step(self, rows: int) -> Result:
        """Tokens per second of a decode step of the model alone with `rows` rows."""
        setup, limits = self._setup, self._limits
        if self._alone is None:
            model = random_model(self._hf, limits.torch_dtype, limits.torch_device)
            context = _context(setup)
            costs = {n: decode_cost(model, n, context, 0, limits.torch_dtype) for n in setup.streams}
            WeightPacker(model, limits.torch_dtype, limits.torch_device).finish()
            self._alone = model, costs
        model, costs = self._alone
        seconds, how = seconds_per_decode_step(model, rows, _context(setup), 0, setup.tiny)
        floor = costs[rows].seconds(limits.bytes_per_second, limits.operations_per_second)
        return Result.of_time(seconds, floor, rows / seconds, "tokens/s", how)

    def host_time(self, rows: int) -> Result:
        """Microseconds of Python in a decode step of the engine: its duration without the wait for the device."""
        entry = self._started_engine()
        with _timed_steps(entry.engine, rows) as steps:
            entry.run(self._job(rows, 10))
        seconds = sorted(steps)
        assert seconds, "no step had all rows"
        note = "median" if self._limits.device == "cuda" else "median; the model included, which a device would compute"
        return Result(1e6 * percentile(seconds, 0.5), "µs", note=note)

    def prompt(self, tokens: int) -> Result:
        """Milliseconds from the arrival of one prompt of `tokens` tokens to its first token."""
        vocab = self._hf["vocab_size"]
        outcome = best(
            self._started_engine().run,
            lambda seed: Job("generate", random_ids(1, tokens, vocab, 1000 * seed + tokens), [1]),
            self._setup,
        )
        return Result(1e3 * outcome.seconds, "ms", outcome.seconds, note=f"{tokens / outcome.seconds:,.0f} tokens/s")

    def close(self) -> None:
        """Stop the server."""
        if self._server is not None:
            self._server.close()

    def _engine_outcome(self, count: int) -> Outcome:
        return best(self._started_engine().run, partial(self._job, count), self._setup)

    def _http_outcome(self, count: int) -> Outcome:
        if self._server is None:
            self._free()
            flags = ("--max-batch-rows", str(self._most_rows))
            self._server = http_server.Entry(self._limits.device, self._kv_bytes, flags)
            self._server.load(self._subject())
        return best(self._server.run, partial(self._job, count), self._setup)

    def _started_engine(self) -> ours.Entry:
        if self._engine is None:
            self._free()
            self._engine = ours.Entry(self._limits.device, self._kv_bytes, self._most_rows)
            self._engine.load(self._subject())
        return self._engine

    @property
    def _most_rows(self) -> int:
        return max(MIN_ROWS, *self._setup.streams)

    @property
    def _kv_bytes(self) -> int:
        return kv_bytes(self._hf, self._setup, self._limits)

    def _job(self, count: int, seed: int) -> Job:
        # Jobs with the same seed and different numbers of streams would begin with the same prompts.
        setup, own_seed = self._setup, 1000 * seed + count
        inputs = random_ids(count, setup.prompt, self._hf["vocab_size"], own_seed)
        return Job("generate", inputs, [setup.new] * count, count)

    def _subject(self) -> Subject:
        directory = self._setup.models / self._shape
        random_checkpoints.write(directory, self._hf, self._limits.torch_dtype, self._limits.torch_device)
        return subject(directory, self._shape, self._limits)

    def _free(self) -> None:
        """Free the memory of the model alone and of the engine."""
        self._alone = self._engine = None
        free_memory(self._limits)


class _timed_steps:
    """Context manager that yields a list, to which each decode step of an engine with `rows` rows adds its host time.

    The host time is the duration of the step in seconds, without the time for which it waits for the device.
    """

    def __init__(self, engine: Engine, rows: int) -> None:
        self._engine, self._rows = engine, rows
        self._waited = 0.0

    def __enter__(self) -> list[float]:
        found: list[float] = []
        step = self._engine.step
        (model,) = self._engine.models.values()
        assert model.generation is not None
        scheduler = model.generation.scheduler

        def timed() -> object:
            self._waited, started = 0.0, time.perf_counter()
            is_full = len(scheduler.running) == self._rows and not scheduler.has_prefill
            output = step()
            if is_full:
                found.append(time.perf_counter() - started - self._waited)
            return output

        self._engine.step = timed  # type: ignore[method-assign, assignment]
        self._tokens = _chosen_tokens()
        if self._tokens is not None:
            self._read = read = self._tokens.read

            def waited(tokens: object) -> list[int]:
                started = time.perf_counter()
                result: list[int] = read(tokens)
                self._waited += time.perf_counter() - started
                return result

            self._tokens.read = waited
        return found

    def __exit__(self, *error: object) -> None:
        del self._engine.step
        if self._tokens is not None:
            self._tokens.read = self._read


def _chosen_tokens() -> Any:
    """The class `ChosenTokens`, or None without Triton. Its `read` waits for the device and returns a step's tokens."""
    try:
        from models.backends.cuda.graphs.step_graphs import ChosenTokens
    except ImportError:
        return None
    return ChosenTokens


def kv_bytes(hf: Mapping[str, Any], setup: Setup, limits: Limits) -> int:
    """Bytes of a KV cache that holds the largest number of streams at once. hf: contents of `config.json`."""
    layers = random_model(hf, limits.torch_dtype, torch.device("meta")).self_attention_layers()
    tokens = max(setup.streams) * (setup.prompt + setup.new + 2 * BLOCK_SIZE)
    return tokens * KVCache.block_bytes(layers, 1, limits.torch_dtype)


def free_memory(limits: Limits) -> None:
    """Free the memory of models that are no longer referenced.

    The parts of a model refer to each other, and the engine had excluded them from garbage collection.
    """
    gc.unfreeze()
    gc.collect()
    if limits.device == "cuda":
        torch.cuda.empty_cache()


def subject(directory: Path, shape: str, limits: Limits) -> Subject:
    """A checkpoint for an engine or a server, in the dtype of the run."""
    return Subject(shape, limits.dtype, str(directory), "", torch.get_num_threads())


def random_ids(count: int, length: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Random token ids of `count` prompts, different for each seed so that the prefix cache never has them."""
    chosen = random.Random(seed)
    return [[chosen.randrange(vocabulary.FIRST_WORD, vocab_size - 1) for _ in range(length)] for _ in range(count)]


def best(run: Callable[[Job], Outcome], job: Callable[[int], Job], setup: Setup) -> Outcome:
    """Run a job three times, and return the faster of the last two runs. With tiny models, it runs once.

    job: returns the job for a seed; every run has another seed.
    """
    outcomes = [run(job(seed)) for seed in range(1 if setup.tiny else 3)]
    return min(outcomes[-2:], key=lambda outcome: outcome.seconds)


def decode_rate(outcome: Outcome, streams: int) -> float:
    """Tokens per second of all streams together: `streams` divided by the median time between a stream's tokens."""
    gaps = sorted(gap for gap in outcome.gaps if gap)
    return streams / gaps[len(gaps) // 2]
