"""Compare divisions of the cores into workers and threads: `python -m benchmarks.scaling --layouts 1x2 2x1`.

The servers run at the same time with the same model and get the same requests in turns, so that a change of the
machine's speed affects all of them. A line per load shows their throughput and the ratios to the first server, and a
line per model the memory (proportional set size) of their workers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import make
from benchmarks.http_client import send_all
from benchmarks.memory import children

_URL = re.compile(r"http://127\.0\.0\.1:(\d+)")
_WORDS = ("a", "small", "river", "crossed", "the", "old", "town", "and", "every", "baker", "walked", "along", "it")


Server = tuple[int, subprocess.Popen[str]]
"""Port and process of a running server."""


@dataclass(frozen=True)
class Load:
    """A load on a server: many requests of one kind.

    model: name of the model. in_flight: number of concurrent requests. requests: number of requests per round.
    body: function that returns the route and the JSON body of a request, given the index of the request.
    unit: name of the throughput's unit. units: number of units per request.
    """

    name: str
    model: str
    in_flight: int
    requests: int
    body: Callable[[int], tuple[str, dict[str, Any]]]
    unit: str
    units: int


def text(number: int, words: int) -> str:
    """A text that starts with `number` and has `words` further, arbitrary words. Each number gives another text."""
    return " ".join([str(number), *(_WORDS[(number * 7 + index * 3) % len(_WORDS)] for index in range(words))])


def generate(model: str, in_flight: int, requests: int, tokens: int) -> Load:
    def body(number: int) -> tuple[str, dict[str, Any]]:
        options = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        return "/v1/completions", {"model": model, "prompt": text(number, 24), **options}

    return Load(f"{model}: generate, {in_flight} at a time", model, in_flight, requests, body, "tokens/s", tokens)


def translate(model: str, in_flight: int, requests: int, tokens: int) -> Load:
    def body(number: int) -> tuple[str, dict[str, Any]]:
        options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "num_beams": 1}
        return "/translate", {"model": model, "inputs": text(number, 20), **options}

    return Load(f"{model}: translate, {in_flight} at a time", model, in_flight, requests, body, "tokens/s", tokens)


def embed(model: str, in_flight: int, requests: int, texts: int) -> Load:
    def body(number: int) -> tuple[str, dict[str, Any]]:
        inputs = [text(number * texts + index, 40) for index in range(texts)]
        return "/v1/embeddings", {"model": model, "input": inputs}

    name = f"{model}: embed {texts} {'text' if texts == 1 else 'texts'}, {in_flight} at a time"
    return Load(name, model, in_flight, requests, body, "texts/s", texts)


LOADS = (
    generate("story", 1, 6, 96),
    generate("story", 16, 96, 96),
    translate("translator-en-fr", 16, 64, 16),
    embed("sentence-encoder", 16, 256, 1),
    embed("minilm-22m", 1, 32, 1),
    embed("minilm-22m", 16, 128, 1),
    embed("minilm-22m", 4, 16, 32),
    translate("marian-74m", 1, 4, 24),
    translate("marian-74m", 16, 32, 24),
    generate("llama-135m", 1, 2, 24),
    generate("llama-135m", 8, 16, 24),
    generate("llama-135m", 32, 48, 24),
)


@contextmanager
def server(models: list[str], workers: int, threads: int) -> Iterator[Server]:
    """Start a server, and yield its port and process. The server is stopped at the end.

    models: `NAME=PATH` of each model. workers: number of workers. threads: number of threads per worker.
    """
    command = [sys.executable, "-m", "server.cli", "serve", *models, "--port", "0", "--device", "cpu"]
    options = {"workers": workers, "threads": threads, "kv-cache-memory": "128M", "access-log": None}
    for name, value in options.items():
        command += ["--no-access-log"] if value is None else [f"--{name}", str(value)]
    command += ["--languages", "marian-74m=en-de"] if any("marian-74m" in model for model in models) else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = next((match for line in process.stdout if (match := _URL.search(line))), None)
            if found is None:
                raise RuntimeError("the server did not start")
            yield int(found[1]), process
        finally:
            process.terminate()


def worker_bytes(process: subprocess.Popen[str]) -> int:
    """Proportional set size of all workers of a server together, in bytes."""
    total = 0
    for pid in children(process.pid):
        if b"server.engine.process.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


def throughput(port: int, load: Load, round_number: int) -> float:
    """Run one round of requests on a server, and return the units per second.

    round_number: index of the round. Each round sends other texts.
    """
    first = round_number * load.requests
    calls = [load.body(first + number) for number in range(load.requests)]
    _, seconds = send_all(port, [(route, json.dumps(body).encode()) for route, body in calls], load.in_flight)
    return load.requests * load.units / seconds


def parse_layout(value: str) -> tuple[int, int]:
    """Parse a layout such as `2x1`: number of workers, and threads per worker."""
    workers, _, threads = value.partition("x")
    return int(workers), int(threads)


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(prog="benchmarks.scaling", description=__doc__)
    parser.add_argument(
        "--layouts",
        nargs="+",
        type=parse_layout,
        default=[(1, cores), (cores, 1)],
        help="WORKERSxTHREADS of each server; all are compared with the first (default: 1xCORES CORESx1)",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--checkpoints", type=Path, default=Path(".bench"), help="directory for the models")
    parser.add_argument("--only", default="", help="only loads whose name contains this text")
    given = parser.parse_args()
    demo = Path(__file__).resolve().parents[1] / "weights" / "demo"
    loads = [load for load in LOADS if given.only in load.name]
    for model in dict.fromkeys(load.model for load in loads):
        directory = demo / model if (demo / model).exists() else make(model, given.checkpoints)
        with ExitStack() as stack:
            servers = [stack.enter_context(server([f"{model}={directory}"], *layout)) for layout in given.layouts]
            for load in (load for load in loads if load.model == model):
                print(f"{load.name}:", compare(load, servers, given.layouts, given.rounds), flush=True)
            sizes = ", ".join(
                f"{workers}x{threads} {worker_bytes(process) / 1e6:.0f} MB"
                for (workers, threads), (_, process) in zip(given.layouts, servers, strict=True)
            )
            print(f"{model}: memory of the workers {sizes}", flush=True)


def compare(load: Load, servers: Sequence[Server], layouts: Sequence[tuple[int, int]], rounds: int) -> str:
    """Measure the throughput of each server under a load, and return a line of text about it.

    The line has, for each server, the median over the rounds, and the median, smallest and largest ratio to the first
    server.
    """
    rates: list[list[float]] = [[] for _ in servers]
    for number in range(rounds + 1):
        for index in range(len(servers)) if number % 2 else reversed(range(len(servers))):
            rate = throughput(servers[index][0], load, number)
            if number:  # the first round warms up
                rates[index].append(rate)
    parts = []
    for (workers, threads), own in zip(layouts, rates, strict=True):
        ratios = sorted(rate / first for rate, first in zip(own, rates[0], strict=True))
        spread = (
            f" ({statistics.median(ratios):.2f}: {ratios[0]:.2f} to {ratios[-1]:.2f})" if own is not rates[0] else ""
        )
        parts.append(f"{workers}x{threads} {statistics.median(own):.0f} {load.unit}{spread}")
    return ", ".join(parts)


if __name__ == "__main__":
    main()
