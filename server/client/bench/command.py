"""The command `triptych bench`: its flags, and a run that measures each load level."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.client import environment
from server.client.bench import chart
from server.client.bench.breakdown import breakdown_table, parts_of
from server.client.bench.dialects import ROUTES, Measured, measure
from server.client.bench.lengths import FORMS, make_prompt, parse_lengths
from server.client.bench.load import Job, MonotonicClock, Sample, closed_loop, open_loop, poisson_arrivals
from server.client.bench.summary import PERCENTILES, Level, percentile, spreads, table
from server.client.connection import Connection, ServerAddress
from server.client.errors import CommandError, RequestFailed
from server.client.interrupts import interruptible
from server.client.options import json_object
from server.client.target import api_key, count, seconds
from server.system.help_texts import HelpFormatter

EXAMPLES = """\
  triptych bench http://127.0.0.1:8000 --model llm --concurrency 1,4,16
  triptych bench http://127.0.0.1:8000 --model llm --rate 2,4,8 --duration 60 --plot load.svg
  triptych bench http://127.0.0.1:8000 --prompt-words lognormal:200,0.8 --output-tokens uniform:16,256
  triptych bench http://127.0.0.1:8000 --dialect native --task embed --rate 50 --json results.json
  triptych bench http://127.0.0.1:8000 --dialect native --task embed --prompt-words 12 --requests 1000 --breakdown"""

HELP_END = f"""
examples:
{EXAMPLES}

With --rate, requests arrive at random times at that mean rate, however slow the answers are, and latencies count from
the arrival. With --concurrency, each answer is followed by the next request. Inter-token times are those between parts
of an answer; a part may hold several tokens. Failed requests count as errors and are not sent again.
Exit code: 0 measured, 1 no request succeeded, 2 wrong command or no server, 130 Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.formatter_class = HelpFormatter
    parser.usage = "triptych bench [FLAGS] URL"
    parser.epilog = HELP_END
    parser.add_argument("url", metavar="URL", help="URL of the server, without a path")
    parser.add_argument("-m", "--model", metavar="NAME", help="model to measure (default: the only one of the server)")
    parser.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help=f"file with the API key (default: ${environment.API_KEY})"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=60.0, metavar="SECONDS", help="time limit of a request (default: 60)"
    )
    what = parser.add_argument_group("requests")
    what.add_argument(
        "--dialect", choices=("openai", "native"), default="openai", help="API of the requests (default: openai)"
    )
    tasks = tuple(dict.fromkeys(task for _, task in ROUTES))
    what.add_argument("--task", choices=tasks, default="generate", help="what the requests ask for (default: generate)")
    what.add_argument(
        "--prompt-words",
        type=parse_lengths,
        default="64",
        metavar="LENGTHS",
        help=f"words per prompt: {FORMS} (default: 64)",
    )
    what.add_argument(
        "--shared-words", type=count, metavar="N", help="begin all prompts with the same N words, like a system prompt"
    )
    what.add_argument("--prompts", type=Path, metavar="FILE", help="prompts from a file instead, one per line")
    what.add_argument(
        "--output-tokens",
        type=parse_lengths,
        default="64",
        metavar="LENGTHS",
        help="tokens per answer, as for --prompt-words (default: 64)",
    )
    what.add_argument("--ignore-eos", action="store_true", help="send ignore_eos, so that answers have full length")
    what.add_argument("--extra", type=json_object, default={}, metavar="JSON", help="fields to add to each request")
    load = parser.add_argument_group("load")
    how = load.add_mutually_exclusive_group()
    how.add_argument("--rate", type=_rates, metavar="R[,R...]", help="requests per second (open loop)")
    how.add_argument(
        "--concurrency", type=_counts, metavar="N[,N...]", help="requests at a time (closed loop; default: 1)"
    )
    load.add_argument("--requests", type=count, metavar="N", help="requests per level (default: 100)")
    load.add_argument("--duration", type=seconds, metavar="SECONDS", help="time per level, instead of --requests")
    load.add_argument(
        "--warmup", type=int, default=4, metavar="N", help="requests before each level, not measured (default: 4)"
    )
    load.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the random prompts and times (default: 0)"
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--breakdown",
        action="store_true",
        help="print where the time of a request goes: arrival, tokenizer, hand-over, step, hand-back, write; the "
        "answers are then no streams",
    )
    output.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON; - is standard output")
    output.add_argument("--plot", type=Path, metavar="FILE", help="write a chart as SVG")
    output.add_argument("-q", "--quiet", action="store_true", help="no progress bar")


def _rates(text: str) -> list[float]:
    return [seconds(part) for part in text.split(",")]


def _counts(text: str) -> list[int]:
    return [count(part) for part in text.split(",")]


@dataclass(frozen=True)
class Load:
    """One load level. rate: requests per second. concurrency: requests at a time. One of them is None."""

    rate: float | None = None
    concurrency: int | None = None

    @property
    def name(self) -> str:
        return f"{self.concurrency} at a time" if self.rate is None else f"{self.rate:g} requests/s"

    @property
    def size(self) -> float:
        return self.rate or float(self.concurrency or 1)


def run(arguments: argparse.Namespace) -> None:
    """Run the command: measure all load levels, and print and write the results.

    Raises CommandError for wrong arguments and without a server, and RequestFailed if no request succeeded.
    """
    route = ROUTES.get((arguments.dialect, arguments.task))
    if route is None:
        known = ", ".join(task for dialect, task in ROUTES if dialect == arguments.dialect)
        raise CommandError(f"--dialect {arguments.dialect} has no task {arguments.task}, only {known}")
    loads = [Load(rate=rate) for rate in arguments.rate or ()] or [
        Load(concurrency=number) for number in arguments.concurrency or (1,)
    ]
    prompts = _read_prompts(arguments.prompts)
    levels, snapshot_bytes = asyncio.run(interruptible(_measure_levels(arguments, route, loads, prompts)))
    if arguments.json is None or str(arguments.json) != "-":
        print(table(levels))
        if arguments.breakdown:
            print(f"\n{breakdown_table(levels)}")
        if snapshot_bytes is not None:
            print(f"snapshots of states in the prefix cache: {snapshot_bytes / 2**20:,.1f} MiB")
    if arguments.json is not None:
        results = {
            "url": arguments.url,
            "route": route.path,
            "model": arguments.model,
            "prompt_words": None if prompts else arguments.prompt_words.text,
            "shared_words": arguments.shared_words or 0,
            "snapshot_bytes": snapshot_bytes,
            "output_tokens": arguments.output_tokens.text,
            "seed": arguments.seed,
            "levels": [
                level.as_json() | ({"parts": spreads(parts_of(level))} if arguments.breakdown else {})
                for level in levels
            ],
        }
        _write(arguments.json, json.dumps(results, indent=1) + "\n")
    if arguments.plot is not None:
        _write(arguments.plot, draw(route.path, loads, levels))
    if not any(level.succeeded for level in levels):
        raise RequestFailed("no request succeeded", 200)


def _read_prompts(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        prompts = [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"--prompts: cannot read {file}: {getattr(error, 'strerror', None) or 'not UTF-8'}"
        ) from None
    if not prompts:
        raise CommandError(f"--prompts: {file} has no prompt")
    return prompts


def _write(path: Path, text: str) -> None:
    if str(path) == "-":
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None


def make_jobs(arguments: argparse.Namespace, prompts: list[str], random_numbers: random.Random) -> Iterator[Job]:
    """Yield random requests to measure with, without end. Their lengths and words are random.

    prompts: texts to use in turn; empty for random words. random_numbers: source of randomness; the same state gives
    the same requests. The shared words at their beginning depend on `--seed` alone.
    """
    shared = make_prompt(arguments.shared_words or 0, random.Random(f"{arguments.seed}/shared"))
    lengths = arguments.prompt_words.draw(random_numbers)
    texts = itertools.cycle(prompts) if prompts else (make_prompt(words, random_numbers) for words in lengths)
    for text, tokens in zip(texts, arguments.output_tokens.draw(random_numbers), strict=False):
        yield Job(f"{shared} {text}" if shared else text, tokens)


async def _measure_levels(
    arguments: argparse.Namespace, route: Measured, loads: list[Load], prompts: list[str]
) -> tuple[list[Level], int | None]:
    """Measure all load levels. Returns their results, and the bytes of state snapshots in the server's prefix cache.

    The number of bytes is None without `--shared-words`, and for a server or model without such snapshots.

    route: route to measure. prompts: texts from a file; empty for random words.
    """
    from tqdm import tqdm

    clock = MonotonicClock()
    where = ServerAddress(arguments.url.rstrip("/"), api_key(arguments.api_key_file), 0, arguments.timeout)
    more = {"ignore_eos": True} if arguments.ignore_eos else {}
    levels: list[Level] = []
    async with Connection(where) as connection:
        model = arguments.model
        if model is None and arguments.dialect == "openai":
            model = arguments.model = await _only_model(connection)
        if model is not None:
            more["model"] = model
        more |= arguments.extra
        for index, load in enumerate(loads):
            random_numbers = random.Random(f"{arguments.seed}/{index}")
            jobs = make_jobs(arguments, prompts, random_numbers)
            bar = tqdm(
                desc=load.name,
                total=_expected(arguments, load),
                unit=" answers",
                disable=arguments.quiet or not sys.stderr.isatty(),
                leave=False,
            )

            async def send(job: Job, due: float) -> Sample:
                sample = await measure(connection, route, job, due, more, clock, arguments.breakdown)
                bar.update()  # noqa: B023, the level has ended before the next one begins
                return sample

            warmup = itertools.islice(jobs, arguments.warmup)
            width = load.concurrency or arguments.warmup
            warm = await closed_loop(warmup, max(1, min(width, arguments.warmup)), send, clock)
            bar.reset()
            if warm and not levels and all(sample.error == "connection" for sample in warm):
                await connection.get("/v1/models")  # raises the errors of the connection
            levels.append(Level(load.name, await _offer(arguments, load, jobs, send, clock, random_numbers)))
            bar.close()
        return levels, await _snapshot_bytes(connection) if arguments.shared_words else None


async def _snapshot_bytes(connection: Connection) -> int | None:
    """Return the bytes of state snapshots in the prefix cache, from the server's metrics; None without snapshots."""
    try:
        page = await connection.text("/metrics")
    except CommandError:
        return None
    found = re.search(r'^triptych_state_bytes\{kind="snapshots"\} (\S+)$', page, re.MULTILINE)
    return int(float(found[1])) if found else None


def _expected(arguments: argparse.Namespace, load: Load) -> int | None:
    if arguments.duration is None:
        return arguments.requests or 100
    return None if load.rate is None else round(load.rate * arguments.duration)


async def _offer(
    arguments: argparse.Namespace,
    load: Load,
    jobs: Iterator[Job],
    send: Any,
    clock: MonotonicClock,
    numbers: random.Random,
) -> list[Sample]:
    """Send the requests of one load level, without warm-up. Returns a sample of each.

    jobs: requests without end. send: sends a request. numbers: source of randomness for the arrival times.
    Raises CommandError if `--duration` is too short for a single request.
    """
    limit = arguments.requests or (100 if arguments.duration is None else None)
    some = itertools.islice(jobs, limit)
    if load.rate is None:
        samples = await closed_loop(some, load.concurrency or 1, send, clock, arguments.duration)
    else:
        # Arrival times come from a separate generator, because prompts are made while requests arrive.
        arrivals = poisson_arrivals(load.rate, random.Random(numbers.random()))
        samples = await open_loop(some, arrivals, send, clock, arguments.duration)
    if not samples:
        raise CommandError(f"--duration {arguments.duration:g} is too short: no request arrived at {load.name}")
    return samples


async def _only_model(connection: Connection) -> str:
    """Return the name of the server's only model. Raises CommandError if it lists none or several."""
    answer = await connection.get("/v1/models")
    try:
        names = [model["id"] for model in answer["data"]]
    except (LookupError, TypeError):
        names = []
    if len(names) != 1:
        raise CommandError(f"choose a model with --model: {', '.join(names) or 'the server lists none'}")
    return str(names[0])


def draw(path: str, loads: list[Load], levels: list[Level]) -> str:
    """Draw the results as SVG: latency percentiles by load, or for a single level the latency of each request by time.

    path: route that was measured. Raises RequestFailed if no request succeeded.
    """
    if not any(level.succeeded for level in levels):
        raise RequestFailed("no request succeeded, so there is nothing to draw", 200)
    if len(levels) == 1:
        done = levels[0].succeeded
        start = min(sample.due for sample in done)
        points = {
            "first token": [
                (sample.due - start, (sample.times[0] - sample.due) * 1000) for sample in done if sample.times
            ],
            "whole answer": [(sample.due - start, (sample.ended - sample.due) * 1000) for sample in done],
        }
        return chart.chart(f"{path}, {levels[0].load}", "seconds since the start", "milliseconds", points, scatter=True)
    series: dict[str, list[tuple[float, float]]] = {}
    for load, level in sorted(zip(loads, levels, strict=True), key=lambda pair: pair[0].size):
        kinds = {"first token": level.first_token_seconds(), "inter-token": level.gap_seconds()}
        for name, values in kinds.items() if any(kinds.values()) else {"answer": level.latency_seconds()}.items():
            for percent in PERCENTILES[::2]:
                if values:
                    series.setdefault(f"{name} p{percent}", []).append((load.size, percentile(values, percent) * 1000))
    unit = "requests per second" if loads[0].rate is not None else "requests at a time"
    return chart.chart(path, unit, "milliseconds", series)
