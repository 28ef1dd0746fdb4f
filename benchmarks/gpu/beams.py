"""Stage of `benchmarks.gpu` that translates with beam search, in the engine and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from benchmarks import checkpoints, random_checkpoints, vocabulary
from benchmarks.contestants import http_server, ours
from benchmarks.contestants.contract import Outcome, Subject
from benchmarks.gpu.device import Limits
from benchmarks.gpu.engine import best, random_ids, subject
from benchmarks.gpu.row import Result, Row, Setup, Stage
from benchmarks.random_models import decode_cost, random_model
from benchmarks.workloads import Job

BEAMS = 4
KV_BYTES = 4 << 30


def translate(name: str) -> Stage:
    """Return the stage that translates all sentences at once with beam search, with a model of opus-mt's shape.

    The floor is that of one decode step for all beams, times the number of new tokens per sentence.
    """

    def rows_of(setup: Setup, limits: Limits) -> Iterator[Row]:
        hf = marian(setup.tiny)
        rows = setup.sentences * BEAMS

        @cache
        def written() -> Subject:
            directory = setup.models / name
            return subject(
                random_checkpoints.write(directory, hf, limits.torch_dtype, limits.torch_device), name, limits
            )

        @cache
        def floor_seconds() -> float:
            model = random_model(hf, limits.torch_dtype, limits.torch_device)
            cost = decode_cost(model, rows, new_tokens(setup) // 2, new_tokens(setup), limits.torch_dtype)
            return new_tokens(setup) * cost.seconds(limits.bytes_per_second, limits.operations_per_second)

        def in_engine() -> Result:
            entry = ours.Entry(limits.device, KV_BYTES if not setup.tiny else ours.KV_BYTES, max(rows, 128))
            entry.load(written())
            outcome = best(entry.run, partial(job, setup, hf), setup)
            return Result.of_time(outcome.seconds, floor_seconds(), outcome.tokens / outcome.seconds, "tokens/s")

        def over_http() -> Result:
            flags = ("--max-batch-rows", str(max(rows, 128)))
            server = http_server.Entry(limits.device, KV_BYTES if not setup.tiny else ours.KV_BYTES, flags)
            server.load(written())
            try:
                outcome: Outcome = best(server.run, partial(job, setup, hf), setup)
            finally:
                server.close()
            rate, engine = outcome.tokens / outcome.seconds, setup.done.get(engine_row)
            return Result(rate, "tokens/s", share=None if engine is None else rate / engine.value, note="of the engine")

        engine_row = f"{name}, {setup.sentences} sentences, {BEAMS} beams"
        yield Row(engine_row, in_engine)
        yield Row(f"{name}, HTTP, {setup.sentences} sentences, {BEAMS} beams", over_http)

    return rows_of


def marian(tiny: bool) -> dict[str, Any]:
    """Contents of `config.json` of a model with the shape of opus-mt. tiny: one with only some thousand parameters."""
    hf = checkpoints.SHAPES["marian-tiny" if tiny else "marian-74m"].settings
    return hf | {"model_type": "marian", "architectures": ["MarianMTModel"], "activation_function": "swish"}


def new_tokens(setup: Setup) -> int:
    """Number of tokens in each source text, which is also the number in each translation."""
    return 8 if setup.tiny else 32


def job(setup: Setup, hf: dict[str, Any], seed: int) -> Job:
    """Translations of random sentences, all at once."""
    length = new_tokens(setup)
    sources = [[*ids, vocabulary.EOS] for ids in random_ids(setup.sentences, length - 1, hf["vocab_size"], seed)]
    return Job("generate", sources, [length] * setup.sentences, setup.sentences, BEAMS)
