"""Stages of `benchmarks.gpu` with the engine and the server: beam search translation, and streams of an 8B model."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks import checkpoints, random_checkpoints, vocabulary
from benchmarks.contestants import http_server, ours
from benchmarks.contestants.contract import Outcome, Subject
from benchmarks.gpu_device import Limits
from benchmarks.gpu_result import Result, Setup
from benchmarks.gpu_steps import seconds_per_decode_step
from benchmarks.random_models import BLOCK_SIZE, config_of, decode_cost, random_model
from benchmarks.workloads import Job
from models.checkpoint.pack_weights import WeightPacker
from models.steps.kv_cache import KVCache

BEAMS = 4
HTTP_GOAL, ENGINE_GOAL = 0.85, 0.93


def translate(setup: Setup, limits: Limits) -> Iterator[Result]:
    """Stage that translates all sentences at once with beam search in the engine, with a model of opus-mt's shape.

    The floor is that of one decode step for all beams, times the number of new tokens per sentence.
    """
    hf = checkpoints.SHAPES["marian-tiny" if setup.tiny else "marian-74m"].settings
    hf = hf | {"model_type": "marian", "architectures": ["MarianMTModel"], "activation_function": "swish"}
    source = new = 8 if setup.tiny else 32
    rows = setup.sentences * BEAMS
    model = random_model(hf, limits.torch_dtype, limits.torch_device)
    cost = decode_cost(model, rows, new // 2, source, limits.torch_dtype)
    del model
    directory = random_checkpoints.write(setup.out / "models" / "opus-mt", hf, limits.torch_dtype, limits.torch_device)
    entry = ours.Entry(limits.device)
    entry.load(_subject(directory, "opus-mt", limits))

    def job(seed: int) -> Job:
        inputs = [[*ids, vocabulary.EOS] for ids in _ids(setup.sentences, source - 1, hf["vocab_size"], seed)]
        return Job("generate", inputs, [new] * setup.sentences, setup.sentences, BEAMS)

    outcome = _best(entry, job, setup)
    yield Result.of_time(
        f"opus-mt, {setup.sentences} sentences of {source} tokens, {BEAMS} beams, {new} new tokens",
        outcome.seconds,
        new * cost.seconds(limits.bytes_per_second, limits.operations_per_second),
        outcome.tokens / outcome.seconds,
        "tokens/s",
    )


def serve(setup: Setup, limits: Limits) -> Iterator[Result]:
    """Stage that decodes several streams of an 8B model: steps of the model alone, in the engine, and over HTTP."""
    hf = config_of("llama-8b", setup.tiny)
    model = random_model(hf, limits.torch_dtype, limits.torch_device)
    rows, context = setup.streams, setup.prompt + setup.new // 2
    cost = decode_cost(model, rows, context, 0, limits.torch_dtype)
    WeightPacker(model, limits.torch_dtype, limits.torch_device).finish()
    alone, how = seconds_per_decode_step(model, rows, context, 0, setup.tiny)
    floor = cost.seconds(limits.bytes_per_second, limits.operations_per_second)
    yield Result.of_time(
        f"llama-8b, step of the model alone, {rows} rows, context {context}",
        alone,
        floor,
        rows / alone,
        "tokens/s",
        note=how,
    )
    tokens = rows * (setup.prompt + setup.new + 2 * BLOCK_SIZE)
    kv_bytes = tokens * KVCache.block_bytes(model.self_attention_layers(), 1, limits.torch_dtype)
    del model
    _free_memory(limits)

    def job(seed: int) -> Job:
        inputs = _ids(rows, setup.prompt, hf["vocab_size"], seed)
        return Job("generate", inputs, [setup.new] * rows, rows)

    directory = random_checkpoints.write(setup.out / "models" / "llama-8b", hf, limits.torch_dtype, limits.torch_device)
    subject = _subject(directory, "llama-8b", limits)
    entry = ours.Entry(limits.device, kv_bytes)
    entry.load(subject)
    engine = _best(entry, job, setup)
    engine_rate = _decode_rate(engine, rows)
    yield Result(
        f"llama-8b, decode of {rows} streams in the engine, against the step alone",
        engine_rate,
        "tokens/s",
        share=engine_rate * alone / rows,
        goal=ENGINE_GOAL,
    )
    del entry
    _free_memory(limits)
    server = http_server.Entry(limits.device, kv_bytes)
    server.load(subject)
    try:
        http = _best(server, job, setup)
    finally:
        server.close()
    yield Result(
        f"llama-8b, {rows} streams over HTTP, against the engine",
        http.tokens / http.seconds,
        "tokens/s",
        share=http.tokens / http.seconds / (engine.tokens / engine.seconds),
        goal=HTTP_GOAL,
    )


def _free_memory(limits: Limits) -> None:
    """Free the memory of models that are no longer referenced.

    The parts of a model refer to each other, and the engine had excluded them from garbage collection.
    """
    gc.unfreeze()
    gc.collect()
    if limits.device == "cuda":
        torch.cuda.empty_cache()


def _subject(directory: Path, shape: str, limits: Limits) -> Subject:
    return Subject(shape, limits.dtype, str(directory), "", torch.get_num_threads())


def _ids(count: int, length: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Random token ids of `count` prompts, different for each seed so that the prefix cache never has them."""
    chosen = random.Random(seed)
    return [[chosen.randrange(vocabulary.FIRST_WORD, vocab_size - 1) for _ in range(length)] for _ in range(count)]


def _best(entry: ours.Entry | http_server.Entry, job: Callable[[int], Job], setup: Setup) -> Outcome:
    """The faster of two runs after a warm-up; for tiny models, a single run. job: returns the job for a seed."""
    outcomes = [entry.run(job(seed)) for seed in range(1 if setup.tiny else 3)]
    return min(outcomes[-2:], key=lambda outcome: outcome.seconds)


def _decode_rate(outcome: Outcome, streams: int) -> float:
    """Tokens per second of all streams together: `streams` divided by the median time between a stream's tokens."""
    gaps = sorted(gap for gap in outcome.gaps if gap)
    return streams / gaps[len(gaps) // 2]
