"""Stage of `benchmarks.gpu` that compares servers with a plain server: each has one more setting or another checkpoint.

The settings are flags of `triptych serve`. If this version lacks a flag or one of its values, the rows are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import random_checkpoints
from benchmarks.contestants import http_server
from benchmarks.contestants.contract import Outcome
from benchmarks.gpu.device import Limits
from benchmarks.gpu.engine import MIN_ROWS, best, kv_bytes, random_ids, subject
from benchmarks.gpu.row import Result, Row, Setup, Skipped, Stage
from benchmarks.gpu.steps import counted
from benchmarks.random_models import config_of
from benchmarks.workloads import Job
from server.errors import StartError
from server.settings.read import load
from server.settings.settings import Settings


class Variant(NamedTuple):
    """A server that is compared with the plain server.

    flags: value of each additional flag, by name of the setting. `{head}` stands for the directory of an EAGLE-3 head,
        with weights of the same kind as the checkpoint.
    checkpoint: kind of the weights. With `constant`, all drafts are accepted.
    """

    flags: Mapping[str, str] = {}
    checkpoint: random_checkpoints.Kind = "random"


PLAIN = "plain server"
VARIANTS: Mapping[str, Variant] = {
    PLAIN: Variant(),
    "batch invariant": Variant({"batch_invariant": "true"}),
    "KV cache in int8": Variant({"kv_cache_dtype": "int8"}),
    "KV cache in fp8": Variant({"kv_cache_dtype": "fp8"}),
    "fp8 checkpoint": Variant(checkpoint="fp8"),
    "n-gram drafts, all accepted": Variant({"speculative": "ngram"}, "constant"),
    "EAGLE-3 drafts, all accepted": Variant({"speculative": "m=draft:{head}"}, "constant"),
    "EAGLE-3 drafts, none accepted": Variant({"speculative": "m=draft:{head}"}),
}
"""The servers by names of their rows. The plain server comes first, because the other servers are compared with it."""


def settings(shape: str) -> Stage:
    """Return the stage that decodes streams over HTTP with each of `VARIANTS`, for a model with this shape.

    The share of a row is its decode rate as a multiple of the plain server's decode rate.
    """

    def rows_of(setup: Setup, limits: Limits) -> Iterator[Row]:
        for name, variant in VARIANTS.items():
            server = cache(partial(_server, shape, variant, setup, limits))
            try:
                for count in setup.streams:
                    measure = partial(_measure, shape, count, server, setup)
                    yield Row(f"{shape}, {name}, {counted(count, 'stream')}", measure)
            finally:
                if server.cache_info().currsize:
                    server().close()

    return rows_of


def _measure(shape: str, count: int, server: Any, setup: Setup) -> Result:
    outcome = best(server().run, partial(_job, shape, count, setup), setup)
    rate = mean_decode_rate(outcome, count)
    plain = setup.done.get(f"{shape}, {PLAIN}, {counted(count, 'stream')}")
    return Result(rate, "tokens/s", share=None if plain is None else rate / plain.value)


def mean_decode_rate(outcome: Outcome, streams: int) -> float:
    """Tokens per second of all streams together, from the mean time between a stream's tokens.

    A server with drafts sends several tokens at once, so many of these times are 0 and their median would be useless.
    """
    return streams * len(outcome.gaps) / sum(outcome.gaps)


def _job(shape: str, count: int, setup: Setup, seed: int) -> Job:
    inputs = random_ids(count, setup.prompt, config_of(shape, setup.tiny)["vocab_size"], 1000 * seed + count)
    return Job("generate", inputs, [setup.new] * count, count)


def _server(shape: str, variant: Variant, setup: Setup, limits: Limits) -> http_server.Entry:
    """Start a server. Raises Skipped for flags or values that this version does not have."""
    check_flags(variant.flags)
    hf, kind, to = config_of(shape, setup.tiny), variant.checkpoint, (limits.torch_dtype, limits.torch_device)
    directory = setup.models / (shape if kind == "random" else f"{shape}-{kind}")
    random_checkpoints.write(directory, hf, *to, kind)
    flags = ["--max-batch-rows", str(max(MIN_ROWS, *setup.streams))]
    for name, value in variant.flags.items():
        if "{head}" in value:
            head = random_checkpoints.write_draft_head(
                setup.models / f"{shape}-{kind}-head", hf, *to, is_constant=kind == "constant"
            )
            value = value.format(head=head)
        flag = "--" + name.replace("_", "-")
        flags += [flag] if value == "true" else [flag, value]
    entry = http_server.Entry(limits.device, kv_bytes(hf, setup, limits), flags)
    entry.load(subject(Path(directory), shape, limits))
    return entry


def check_flags(flags: Mapping[str, str]) -> None:
    """Raise Skipped if a setting, or its value, does not exist in this version."""
    missing = [name for name in flags if name not in Settings.model_fields]
    if missing:
        raise Skipped(f"this version has no --{missing[0].replace('_', '-')}")
    try:
        load({**flags, "models": ["m=."]})
    except StartError as error:
        given = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in flags.items())
        raise Skipped(f"this version does not take {given}: {str(error).splitlines()[0]}") from None
