"""Measure promise 8 inside the worker: gaps between tokens of streams beside a long prompt and a large embedding.

Times are processor times of an engine with one thread, so that other work on the machine changes them little.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch

from server.engine.encoding import encoder_engine
from server.engine.process import service
from server.engine.stepping import engine, generation_engine
from server.engine.stepping.engine import Engine
from server.ipc.wire.descriptions import EngineOptions, ModelSpec
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.worker_messages import Configure

DEMO = Path(__file__).parents[2] / "weights" / "demo"
STORY, ENCODER = "story", "sentence-encoder"


@dataclass(frozen=True)
class Gaps:
    """Gaps between two tokens of a stream (p99, in milliseconds of processor time), and texts encoded per second.

    ratio: gap beside other work divided by the gap of the streams alone. Both are measured in the same repetition,
        because the speed of the processor changes.
    """

    alone: float
    disturbed: float
    ratio: float
    texts_per_second: float


def measure(repetitions: int, streams: int = 16, texts: int = 512) -> Gaps:
    """Measure streams alone, then beside a prompt of maximal length and an embedding of many texts.

    Returns medians over the repetitions.
    """
    with _processor_time():
        options = EngineOptions(kv_cache_bytes=64 << 20, threads=1)
        models = [ModelSpec(name, str(DEMO / name), "float32") for name in (STORY, ENCODER)]
        made, infos = service.start(Configure(0, "cpu", models, options), lambda progress: None)
        context = next(info.context_tokens for info in infos if info.name == STORY)
        found = [_once(made, number, streams, texts, context) for number in range(repetitions + 1)][1:]
    return Gaps(*(statistics.median(values) for values in zip(*found, strict=True)))


@contextmanager
def _processor_time() -> Iterator[None]:
    """Replace the engine's clock by the processor time of this thread, which computes everything."""
    threads = torch.get_num_threads()
    clock = SimpleNamespace(monotonic=time.thread_time)
    modules = (engine, generation_engine, encoder_engine)
    patches = [patch.object(module, "time", clock) for module in modules]
    for replaced in patches:
        replaced.start()
    try:
        yield
    finally:
        for replaced in patches:
            replaced.stop()
        torch.set_num_threads(threads)


def _once(made: Engine, number: int, streams: int, texts: int, context: int) -> tuple[float, float, float, float]:
    rng, first = random.Random(number), 1_000_000 * number
    params = GenerationParams(do_sample=True, stream=True)
    rows = [GenerateRow(first + i, 400, i, seed=i) for i in range(streams)]
    made.add(Generate(STORY, params, [[rng.randrange(3, 300) for _ in range(8)] for _ in rows], rows))
    prompt = [rng.randrange(3, 300) for _ in range(context - 9)]
    items = [EncodeItem([rng.randrange(5, 300) for _ in range(10)]) for _ in range(texts)]
    last: dict[int, float] = {}
    alone = _gaps(made, range(first, first + streams), last, steps=120)
    made.add(Generate(STORY, params, [prompt], [GenerateRow(first + streams, 8, 0)]))
    made.add(Encode(first + streams + 1, ENCODER, "embed", items))
    began = time.thread_time()
    disturbed = _gaps(made, range(first, first + streams), last, until=first + streams + 1)
    seconds = time.thread_time() - began
    for sequence_id in range(first, first + streams):
        made.abort(sequence_id)
    while made.has_work:
        made.step()
    return p99(alone), p99(disturbed), p99(disturbed) / p99(alone), texts / seconds


def _gaps(
    made: Engine, ids: Iterable[int], last: dict[int, float], steps: int = 0, until: int | None = None
) -> list[float]:
    """Run `steps` steps, or steps until an embedding has ended. Returns the gaps of the streams in milliseconds.

    ids: ids of the streams' sequences. last: time of the latest token of each stream; updated.
    until: id of the embedding, or None.
    """
    gaps, wanted = [], set(ids)
    while steps > 0 or (until is not None and until in made._requests):
        steps -= 1
        output = made.step()
        now = time.thread_time()
        for event in output.tokens if output is not None else ():
            if event.sequence_id in wanted:
                if event.sequence_id in last:
                    gaps.append(1000 * (now - last[event.sequence_id]))
                last[event.sequence_id] = now
    return gaps


def p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


if __name__ == "__main__":
    print(measure(5))
