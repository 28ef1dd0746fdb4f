"""Many declared models under a quarter of their memory: Zipf order, a broken checkpoint, a killed worker.

    python -m tests.soak.models                                     copies of the demo models, two minutes
    python -m tests.soak.models --published --of-files --seconds 1200    forty models of published sizes

Each model is loaded alone first: its answer, its memory, its load times and the memory that its unload gives back are
recorded. Then clients ask for the models in Zipf order, under a budget. An answer must be that of the model alone.
A request that was in the worker when it was killed may fail, and is sent again. Prints the numbers as JSON, and exits
with 1 if the run breaks a promise (`Numbers.faults`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from tests.e2e.conftest import COMMAND, RunningServer, serving
from tests.soak import checkpoints
from tests.soak.checkpoints import BROKEN, Models
from tests.soak.traffic import ZipfOrder, ask, bytes_above, is_equal, send_all, tree_bytes

ALLOWED_EXCESS = 1.05
GIVE_BACK_SECONDS = 5.0
"""Time after an unload in which its memory must be given back to the system."""
MOST_KEPT = 0.05
"""Part of the memory of a model that may stay after its unload."""
HEAP_BYTES = 8 << 20
"""Bytes by which the heaps of idle processes differ from one measurement to the next."""
LOST_WORKER_SECONDS = 30.0
"""Requests that overlap this time after the end of the worker may fail once."""
SAMPLE_SECONDS = 0.5
TRIES = 3


@dataclass
class Alone:
    """What one model does while no other is loaded. Times are seconds.

    answer: see `Kind.answer`. bytes: memory that the server counts for it.
    cold, packing, packed: time of a load from the checkpoint; of one that also writes the packed cache; of one from it.
    kept_bytes: memory that was not given back `GIVE_BACK_SECONDS` after the second unload.
    """

    answer: Any = None
    bytes: int = 0
    cold: float = 0.0
    packing: float = 0.0
    packed: float = 0.0
    kept_bytes: int = 0


@dataclass
class Numbers:
    """The numbers of a run. Sizes are in MiB, times in seconds. Memory of a run is that above the empty server.

    all_models_mib: size of all models, of which the budget is a part.
    unloads: unloads that made room for another model.
    """

    models: int = 0
    all_models_mib: int = 0
    load_seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    most_kept: float = 0.0
    requests: int = 0
    answers: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    repeated: int = 0
    loads: float = 0.0
    failed_loads: float = 0.0
    unloads: float = 0.0
    median_seconds: float = 0.0
    slowest_seconds: float = 0.0
    budget_mib: float = 0.0
    peak_counted_mib: float = 0.0
    peak_mib: float = 0.0
    left_mib: float = 0.0

    @property
    def faults(self) -> list[str]:
        """The promises that the run breaks."""
        broken = {
            f"{len(self.wrong)} wrong answers": bool(self.wrong),
            f"{len(self.lost)} lost requests": bool(self.lost),
            f"memory of {self.peak_mib:.0f} MiB": self.peak_mib > ALLOWED_EXCESS * self.budget_mib,
            f"{self.peak_counted_mib:.0f} MiB counted": self.peak_counted_mib > self.budget_mib,
            f"{self.most_kept:.0%} of a model kept": self.most_kept > MOST_KEPT,
        }
        return [fault for fault, is_broken in broken.items() if is_broken]


def change(server: RunningServer, name: str, action: str) -> tuple[float, int]:
    """Load or unload a model. Returns its load time, and the bytes that the server counts for it."""
    answer = server.post(f"/models/{name}/{action}", json={})
    assert answer.status_code == 200, answer.text
    about = next(model for model in server.get("/info").json()["on_demand"]["models"] if model["name"] == name)
    return about["load_seconds"], about["memory_bytes"]


def measure_alone(directory: Path, models: Models, flags: Sequence[str], command: tuple[str, ...]) -> dict[str, Alone]:
    """Load each model while no other is loaded: from its checkpoint, into the packed cache, and from it."""
    found = {name: Alone() for name in models}
    packed = ("--packed-cache", str(directory / "packed"))
    with serving(directory / "cold.log", *flags, command=command) as server:
        for name, kind in models.items():
            alone = found[name]
            change(server, name, "load")
            status, alone.answer = ask(server.url, name, kind)
            assert status == 200, f"{name}: {status} {alone.answer}"
            change(server, name, "unload")
            # The first use of a family imports modules and fills caches, which stay.
            before = tree_bytes(server.process.pid)
            alone.cold, alone.bytes = change(server, name, "load")
            ask(server.url, name, kind)
            change(server, name, "unload")
            alone.kept_bytes, _ = bytes_above(server.process.pid, before, GIVE_BACK_SECONDS)
    with serving(directory / "packed.log", *flags, *packed, command=command) as server:
        for name in models:
            for times in ("packing", "packed"):
                setattr(found[name], times, change(server, name, "load")[0])
                change(server, name, "unload")
    return found


class Soak:
    """The run under a budget. alone: see `measure_alone`."""

    def __init__(self, server: RunningServer, models: Models, alone: dict[str, Alone]) -> None:
        self.server, self.models, self.alone = server, models, alone
        self.order = ZipfOrder(list(models))
        self.numbers = Numbers()
        self.counts: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.empty_bytes = tree_bytes(server.process.pid)
        self.peak_bytes = self.peak_counted = 0
        self.killed_at = 0.0
        self.lock = threading.Lock()

    def request(self, number: int) -> None:
        """Send the request with this number in Zipf order."""
        name = self.order.name(number)
        if name == BROKEN:
            status, _ = ask(self.server.url, BROKEN, checkpoints.GENERATE)
            with self.lock:
                self.counts[f"broken {status}"] += 1
            return
        began = time.monotonic()
        for _ in range(TRIES):
            started = time.monotonic()
            status, answer = ask(self.server.url, name, self.models[name])
            ended = time.monotonic()
            may_fail = started <= self.killed_at + LOST_WORKER_SECONDS and ended >= self.killed_at > 0
            if status == 200 or not may_fail:
                break
            with self.lock:
                self.numbers.repeated += 1
            time.sleep(1.0)
        with self.lock:
            self.counts[str(status)] += 1
            self.seconds.append(time.monotonic() - began)
            if status != 200:
                self.numbers.lost.append(f"{name}: {status} {answer}")
            elif not is_equal(answer, self.alone[name].answer):
                self.numbers.wrong.append(name)

    def watch(self, done: threading.Event, kill_at: float) -> None:
        """Sample the memory, and kill the worker once. kill_at: when, in seconds of `time.monotonic()`."""
        while not done.wait(SAMPLE_SECONDS):
            self.peak_bytes = max(self.peak_bytes, tree_bytes(self.server.process.pid) - self.empty_bytes)
            with suppress(httpx.HTTPError, KeyError):
                info = self.server.get("/info").json()["on_demand"]
                self.peak_counted = max(self.peak_counted, info["used_bytes"])
            if not self.killed_at and time.monotonic() > kill_at:
                self.killed_at = time.monotonic()
                self.server.worker().kill()

    def run(self, seconds: float, count: int, clients: int) -> None:
        """Send `count` requests, spread evenly over the time, or later where the server is slower."""
        began, done = time.monotonic(), threading.Event()
        watching = threading.Thread(target=self.watch, args=(done, began + seconds / 2))
        watching.start()
        send_all(self.request, count, seconds, clients)
        done.set()
        watching.join()
        for model in self.server.get("/info").json()["on_demand"]["models"]:
            if model["state"] == "loaded":
                change(self.server, model["name"], "unload")
        left, _ = bytes_above(self.server.process.pid, self.empty_bytes, GIVE_BACK_SECONDS)
        numbers = self.numbers
        numbers.requests, numbers.answers = count, dict(self.counts)
        numbers.loads = self.server.metric("triptych_model_loads_total", outcome="loaded")
        numbers.failed_loads = self.server.metric("triptych_model_loads_total", outcome="failed")
        numbers.unloads = self.server.metric("triptych_model_unloads_total", reason="room")
        numbers.median_seconds, numbers.slowest_seconds = median(self.seconds), max(self.seconds)
        numbers.peak_counted_mib, numbers.peak_mib = self.peak_counted / 2**20, self.peak_bytes / 2**20
        numbers.left_mib = left / 2**20


def soak(
    directory: Path,
    models: Models,
    share: float,
    seconds: float,
    count: int,
    clients: int,
    command: tuple[str, ...] = COMMAND,
    of_files: bool = False,
) -> Numbers:
    """Measure each model alone, then send the requests under a budget.

    directory: has the checkpoints in `models`. share: budget as a part of the size of all models.
    of_files: the size is that of the checkpoints' files; otherwise the memory that the server counts for each model
        alone, which includes a KV cache as large as the server allows without a budget.
    """
    flags = ("--models-dir", str(directory / "models"), "--device", "cpu", "--no-access-log")
    alone = measure_alone(directory, models, flags, command)
    files = (path for path in (directory / "models").rglob("*") if path.is_file())
    total = sum(path.stat().st_size for path in files) if of_files else sum(each.bytes for each in alone.values())
    budget = int(total * share)
    flags = (*flags, "--memory", str(budget), "--packed-cache", str(directory / "packed"))
    with serving(directory / "soak.log", *flags, command=command) as server:
        running = Soak(server, models, alone)
        running.run(seconds, count, clients)
    numbers = running.numbers
    numbers.models, numbers.all_models_mib, numbers.budget_mib = len(models), total >> 20, budget / 2**20
    numbers.most_kept = max(max(each.kept_bytes - HEAP_BYTES, 0) / each.bytes for each in alone.values())
    groups: dict[str, list[Alone]] = {}
    for name, each in alone.items():
        groups.setdefault(name.rpartition("-")[0] or name, []).append(each)
    for group, members in groups.items():
        times = {"cold": [each.cold for each in members], "packing": [each.packing for each in members]}
        times["packed"] = [each.packed for each in members]
        numbers.load_seconds[group] = {name: round(median(values), 3) for name, values in times.items()}
    return numbers


def main() -> int:
    """Run the soak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", action="store_true", help="forty models of published sizes; needs 12 GB of disk")
    parser.add_argument("--models", type=int, default=24, help="number of copies of demo models")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--requests", type=int, default=0, help="default: 2,000 in 20 minutes, or in proportion")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--share", type=float, default=0.25, help="budget as a part of the size of all models")
    parser.add_argument("--of-files", action="store_true", help="the size is that of the files, not of the memory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        make = checkpoints.published_sizes if options.published else checkpoints.demo_copies
        arguments = () if options.published else (options.models,)
        (directory / "models").mkdir()
        models = make(directory / "models", *arguments)
        count = options.requests or max(int(options.seconds * 2000 / 1200), 40)
        numbers = soak(
            directory, models, options.share, options.seconds, count, options.clients, of_files=options.of_files
        )
        print(json.dumps(asdict(numbers), indent=1))
        if numbers.faults:
            print((directory / "soak.log").read_text()[-4000:], *numbers.faults, sep="\n", file=sys.stderr)
    return int(bool(numbers.faults))


if __name__ == "__main__":
    sys.exit(main())
