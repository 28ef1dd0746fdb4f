"""Load times of a model of 1.1 billion parameters, and gaps of streams while it loads. Prints a table and JSON.

    python -m tests.soak.loading                                    bfloat16, int8 and int4
    python -m tests.soak.loading --layers 2 --precisions int8       a small model, for a try

Each precision has three servers, one after the other:

1. with a packed cache: the first load packs the weights and writes the cache (cold), later loads read it (packed).
   Then 16 streams of a small model run alone, and beside packed loads, in turn;
2. without a packed cache: the same streams alone, and beside a load from the checkpoint. Only the first
   `--beside-seconds` of this load are measured, because packing 4 bits takes minutes;
3. with two workers, which share their packed weights: a worker is killed, and the one that replaces it maps the weights
   of the other (mapped).

The load phase is the time in which the worker reads, packs or maps the weights. The whole load adds the KV cache, the
first steps and the tokenizer. The start of the processes counts in neither; it is printed too. The files are in the
page cache, because they have been written or read just before. The 1.5 times alone of promise 40 is the bound of gaps.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.chaos.checks.clients import p99
from tests.chaos.checks.latency import Work, gaps_beside, no_work
from tests.chaos.connection import ask, stream
from tests.e2e.conftest import COMMAND, RunningServer, serving
from tests.soak.checkpoints import DEMO, large_llama
from tests.waiting import eventually

PHASE = "triptych_model_load_seconds"
LARGE = "large"
DECODED_TOKENS = 64
LIMITS = {"bfloat16": 2.0, "int8": 1.0, "int4": 1.0}
"""Most seconds of the load phase from the packed cache."""
MOST_STRETCH, MOST_DECODE = 1.5, 1.02


@dataclass
class Times:
    """The numbers of one precision. Times are seconds unless named otherwise; `packed` are medians of several loads.

    start: time until a server without a loaded model is ready.
    cold, packed, mapped: load phase of the worker. cold_whole, packed_whole: time until the model can be used.
    gap_alone_ms, gap_packed, gap_cold_alone_ms, gap_cold: p99 gap of the streams alone, in milliseconds, and beside a
        load, as a multiple of it.
    step_cold_ms, step_packed: first decile of the time per token of one stream of the large model after the cold load,
        in milliseconds; after packed loads, as a multiple of it.
    """

    precision: str
    start: float = 0.0
    cold: float = 0.0
    cold_whole: float = 0.0
    packed: float = 0.0
    packed_whole: float = 0.0
    mapped: float = 0.0
    gap_alone_ms: float = 0.0
    gap_packed: float = 0.0
    gap_cold_alone_ms: float = 0.0
    gap_cold: float = 0.0
    step_cold_ms: float = 0.0
    step_packed: float = 0.0

    @property
    def faults(self) -> list[str]:
        """The promises that these numbers break."""
        limit = LIMITS.get(self.precision)
        broken = {
            f"packed load phase of {self.packed:.2f} s": limit is not None and self.packed > limit,
            f"gaps beside a packed load {self.gap_packed:.2f} times alone": self.gap_packed > MOST_STRETCH,
            f"gaps beside a cold load {self.gap_cold:.2f} times alone": self.gap_cold > MOST_STRETCH,
            f"decoding after a packed load {self.step_packed:.3f} times cold": self.step_packed > MOST_DECODE,
        }
        return [f"{self.precision}: {fault}" for fault, is_broken in broken.items() if is_broken]


@dataclass
class Loading:
    """Measures one precision. checkpoint: directory of the large model. cache: directory of the packed cache."""

    checkpoint: Path
    cache: Path
    flags: tuple[str, ...]
    times: Times

    @contextmanager
    def server(self, *more: str) -> Iterator[RunningServer]:
        models = (f"story={DEMO / 'story'}", f"{LARGE}={self.checkpoint}")
        common = ("--device", "cpu", "--no-access-log", *self.flags, *more)
        with serving(self.cache.parent / "log", *models, *common, command=COMMAND) as running:
            yield running

    def with_cache(self, loads: int, streams: int) -> None:
        """Measure the cold load, packed loads, decoding after both, and gaps beside packed loads."""
        times = self.times
        began = time.monotonic()
        with self.server("--preload", "story", "--packed-cache", str(self.cache)) as server:
            times.start = time.monotonic() - began
            times.cold_whole, times.cold = _load(server)
            times.step_cold_ms = _undisturbed(_step_ms(server))
            found, packed_steps = [], []
            for _ in range(loads):
                _unload(server)
                found.append(_load(server))
                packed_steps += _step_ms(server)
            times.packed_whole, times.packed = map(statistics.median, zip(*found, strict=True))
            times.step_packed = _undisturbed(packed_steps) / times.step_cold_ms
            _unload(server)

            async def load() -> None:
                answer = await ask(server.url, "POST", f"/models/{LARGE}/load", {})
                assert answer.status == 200, f"status {answer.status} {answer.body[:200]!r}"

            alone, beside = _gaps(server, load, streams, loads)
            times.gap_alone_ms, times.gap_packed = 1000 * alone, beside / alone

    def without_cache(self, seconds: float, streams: int) -> None:
        """Measure gaps beside the first `seconds` of a load from the checkpoint."""
        with self.server("--preload", "story") as server:

            async def load() -> None:
                with contextlib.suppress(asyncio.TimeoutError):
                    answer = await asyncio.wait_for(ask(server.url, "POST", f"/models/{LARGE}/load", {}), seconds)
                    assert answer.status == 200, f"status {answer.status} {answer.body[:200]!r}"

            alone, beside = _gaps(server, load, streams, 1)
            self.times.gap_cold_alone_ms, self.times.gap_cold = 1000 * alone, beside / alone

    def mapped(self) -> None:
        """Measure the load phase of a worker that maps the weights of another worker."""
        with self.server("--workers", "2", "--packed-cache", str(self.cache)) as server:
            root = psutil.Process(server.process.pid)
            workers = [child for child in root.children() if "--fd" in child.cmdline()]
            assert len(workers) == 2, workers
            before, known = server.metric("triptych_worker_restarts_total"), {worker.pid for worker in workers}
            first = server.metric(PHASE, model=LARGE)
            workers[-1].kill()
            eventually(lambda: server.metric("triptych_worker_restarts_total") > before)
            eventually(lambda: server.metric(PHASE, model=LARGE) != first)
            assert {child.pid for child in root.children() if "--fd" in child.cmdline()} != known
            self.times.mapped = server.metric(PHASE, model=LARGE)


def _load(server: RunningServer) -> tuple[float, float]:
    """Load the large model. Returns the seconds of the whole load, and of its load phase."""
    answer = httpx.post(f"{server.url}/models/{LARGE}/load", json={}, timeout=None)
    assert answer.status_code == 200, answer.text
    about = next(model for model in server.get("/info").json()["on_demand"]["models"] if model["name"] == LARGE)
    return about["load_seconds"], server.metric(PHASE, model=LARGE)


def _unload(server: RunningServer) -> None:
    assert server.post(f"/models/{LARGE}/unload", json={}).status_code == 200


def _step_ms(server: RunningServer) -> list[float]:
    """Milliseconds between the tokens of one stream of the large model, without the first ones."""
    body = {"model": LARGE, "prompt": "a b c", "max_new_tokens": DECODED_TOKENS, "ignore_eos": True, "stream": True}
    events = [event.at for event in asyncio.run(stream(server.url, "/generate", body)) if event.name == "token"]
    return [1000 * (later - earlier) for earlier, later in pairwise(events[8:])]


def _undisturbed(times: list[float]) -> float:
    """The first decile. Other work on the machine only makes steps longer, so it disturbs the median more."""
    return statistics.quantiles(times, n=10)[0]


def _gaps(server: RunningServer, load: Work, streams: int, runs: int) -> tuple[float, float]:
    """The p99 gaps of streams of the small model, alone and beside a load of the large one, measured in turn."""
    gaps: dict[str, list[float]] = defaultdict(list)
    asyncio.run(gaps_beside(server.url, no_work, streams, 400, 200))
    for _ in range(runs):
        gaps["alone"] += asyncio.run(gaps_beside(server.url, no_work, streams, 400, 200))
        gaps["load"] += asyncio.run(gaps_beside(server.url, load, streams, 400, 200))
        gaps["alone"] += asyncio.run(gaps_beside(server.url, no_work, streams, 400, 200))
        if runs > 1:
            _unload(server)
    return p99(gaps["alone"]), p99(gaps["load"])


def table(rows: list[Times]) -> str:
    """The numbers as a table in Markdown."""
    head = "| | cold | packed | mapped | whole load, packed | p99 gap beside a packed load | beside a cold load |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for row in rows:
        gaps = f"{row.gap_packed:.2f} times {row.gap_alone_ms:.1f} ms | {row.gap_cold:.2f} times"
        gaps += f" {row.gap_cold_alone_ms:.1f} ms"
        phases = f"{row.cold:.2f} s | {row.packed:.2f} s | {row.mapped:.2f} s | {row.packed_whole:.2f} s"
        lines.append(f"| {row.precision} | {phases} | {gaps} |")
    return "\n".join(lines)


def main() -> int:
    """Measure each precision, and print the numbers. Returns 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", nargs="+", default=list(LIMITS), help="of --dtype or --quantize")
    parser.add_argument("--layers", type=int, default=16, help="layers of the model; 16 are 1.1 billion parameters")
    parser.add_argument("--loads", type=int, default=3, help="packed loads, and runs of streams beside them")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument(
        "--beside-seconds", type=float, default=60.0, help="measured part of a load from the checkpoint"
    )
    options = parser.parse_args()
    rows: list[Times] = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = large_llama(Path(folder) / "checkpoint", options.layers)
        for precision in options.precisions:
            flags = ("--dtype", precision) if precision == "bfloat16" else ("--quantize", f"{LARGE}={precision}")
            cache = Path(folder) / precision
            measured = Loading(checkpoint, cache, flags, Times(precision))
            measured.with_cache(options.loads, options.streams)
            measured.without_cache(options.beside_seconds, options.streams)
            measured.mapped()
            rows.append(measured.times)
            print(json.dumps(_rounded(measured.times)), flush=True)
    print(table(rows))
    faults = [fault for row in rows for fault in row.faults]
    print(*faults, sep="\n", file=sys.stderr)
    return int(bool(faults) and options.layers >= 16)


def _rounded(times: Times) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(times).items()}


if __name__ == "__main__":
    sys.exit(main())
