"""Many declared models under a quarter of their memory: Zipf order, a broken checkpoint, a killed worker.

    python -m tests.soak.models --seconds 120 --models 24

The models are copies of the demo models whose weights are scaled, so that each answers differently. Every answer is
compared with that of a server that loads all models at its start. Prints the numbers as JSON, and exits with 1 if an
answer was lost or wrong, or if the memory exceeded the budget by more than 5%.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from safetensors.numpy import load_file, save_file

from tests.e2e.conftest import COMMAND, REPOSITORY, RunningServer, serving

DEMO = REPOSITORY / "weights" / "demo"
KINDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "story": ("/generate", {"prompt": "Once upon a time", "max_new_tokens": 12, "do_sample": False}),
    "translator-en-fr": ("/translate", {"inputs": ["I am a student"], "source_lang": "en", "target_lang": "fr"}),
    "sentence-encoder": ("/embed", {"inputs": ["The dog chased the cat."]}),
    "sentiment": ("/classify", {"inputs": "I loved this wonderful film"}),
}
BROKEN = "broken"
ALLOWED_EXCESS = 1.05


def make_models(directory: Path, count: int) -> dict[str, str]:
    """Write the models. Returns the kind of each."""
    kinds = {}
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        name = f"{kind}-{number}"
        shutil.copytree(DEMO / kind, directory / name)
        file = directory / name / "model.safetensors"
        weights = {key: value * (1 + 0.002 * number) for key, value in load_file(file).items()}
        save_file({key: value.astype(load_file(file)[key].dtype) for key, value in weights.items()}, file)
        kinds[name] = kind
    shutil.copytree(DEMO / "story", directory / BROKEN)
    (directory / BROKEN / "model.safetensors").write_bytes(b"\0" * 64)
    return kinds


def ask(url: str, name: str, kind: str) -> tuple[int, Any]:
    """Status of one request, and the part of its answer that does not depend on time."""
    route, body = KINDS[kind]
    response = httpx.post(url + route, json=body | {"model": name}, timeout=120)
    answer = response.json()
    if response.status_code != 200:
        return response.status_code, answer["error"]["message"]
    if kind == "story":
        return 200, answer["choices"][0]["text"]
    if kind == "translator-en-fr":
        return 200, [translation["text"] for translation in answer["translations"]]
    return 200, answer


def is_equal(one: Any, other: Any) -> bool:
    """Whether two answers are equal; numbers may differ by the order of sums in batches of other sizes."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < 1e-4
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_equal(one[key], other[key]) for key in one)
    return bool(one == other)


def tree_bytes(server: RunningServer) -> int:
    """Proportional memory of the server and its workers."""
    total, root = 0, psutil.Process(server.process.pid)
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


class Soak:
    """The run under a budget."""

    def __init__(self, server: RunningServer, kinds: dict[str, str], expected: dict[str, Any], budget: int) -> None:
        self.server, self.kinds, self.expected, self.budget = server, kinds, expected, budget
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.lost: list[str] = []
        self.seconds: list[float] = []
        self.empty_bytes = tree_bytes(server)
        self.peak_bytes = self.peak_counted = 0
        self.killed_at = 0.0
        self.lock = threading.Lock()

    def request(self, number: int) -> None:
        """One request in Zipf order. Every 40th is for the broken checkpoint."""
        names = list(self.kinds)
        name = names[min(int(random.Random(number).paretovariate(1.0)) - 1, len(names) - 1)]
        if number % 40 == 39:
            status, _ = ask(self.server.url, BROKEN, "story")
            with self.lock:
                self.counts[f"broken {status}"] += 1
            return
        began = time.monotonic()
        status, answer = ask(self.server.url, name, self.kinds[name])
        ended = time.monotonic()
        with self.lock:
            self.counts[str(status)] += 1
            self.seconds.append(ended - began)
            if status != 200:
                # A request whose worker was killed while it computed fails, and its client sends it again.
                excused = began <= self.killed_at + 30 and ended >= self.killed_at > 0
                self.lost += [] if excused else [f"{name}: {status} {answer}"]
                self.counts["excused"] += excused
            elif not is_equal(answer, self.expected[name]):
                self.wrong.append(name)

    def watch(self, end: float) -> None:
        """Sample the memory, and kill the worker once, in the middle."""
        middle = (time.monotonic() + end) / 2
        while time.monotonic() < end:
            self.peak_bytes = max(self.peak_bytes, tree_bytes(self.server) - self.empty_bytes)
            with suppress(httpx.HTTPError):
                info = self.server.get("/info").json()["on_demand"]
                self.peak_counted = max(self.peak_counted, info["used_bytes"])
            if not self.killed_at and time.monotonic() > middle:
                self.killed_at = time.monotonic()
                self.server.worker().kill()
            time.sleep(0.5)

    def run(self, seconds: float, clients: int) -> dict[str, Any]:
        """Returns the numbers of the run."""
        end = time.monotonic() + seconds
        numbers = iter(range(10**9))
        watching = threading.Thread(target=self.watch, args=(end,))
        watching.start()

        def client() -> None:
            while time.monotonic() < end:
                with self.lock:
                    number = next(numbers)
                self.request(number)

        with ThreadPoolExecutor(clients) as pool:
            for done in [pool.submit(client) for _ in range(clients)]:
                done.result()
        watching.join()
        self.seconds.sort()
        return {
            "answers": dict(self.counts),
            "wrong": self.wrong,
            "lost": self.lost,
            "loads": self.server.metric("triptych_model_loads_total", outcome="loaded"),
            "failed_loads": self.server.metric("triptych_model_loads_total", outcome="failed"),
            "unloads": self.server.metric("triptych_model_unloads_total"),
            "median_seconds": round(self.seconds[len(self.seconds) // 2], 3),
            "slowest_seconds": round(self.seconds[-1], 3),
            "budget_mib": self.budget >> 20,
            "peak_counted_mib": self.peak_counted >> 20,
            "peak_mib": self.peak_bytes >> 20,
        }


def main() -> None:
    """Run the soak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--models", type=int, default=24)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--share", type=float, default=0.25, help="budget as a part of the memory of all models")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        kinds = make_models(directory / "models", options.models)
        named = [f"{name}={directory / 'models' / name}" for name in kinds]
        with serving(directory / "alone", *named, "--device", "cpu", command=COMMAND) as server:
            expected = {name: ask(server.url, name, kind)[1] for name, kind in kinds.items()}
        demand = ("--models-dir", str(directory / "models"), "--device", "cpu")
        with serving(directory / "all", *demand, command=COMMAND) as server:
            for name, kind in kinds.items():
                status, answer = ask(server.url, name, kind)
                assert status == 200 and is_equal(answer, expected[name]), (name, answer, expected[name])
            total = server.get("/info").json()["on_demand"]["used_bytes"]
        budget = int(total * options.share)
        with serving(directory / "soak", *demand, "--memory", str(budget), command=COMMAND) as server:
            soak = Soak(server, kinds, expected, budget)
            found = soak.run(options.seconds, options.clients)
        print(json.dumps({"models": len(kinds), "all_models_mib": total >> 20} | found, indent=1))
        log = (directory / "soak").read_text()
        if soak.wrong or soak.lost or soak.peak_bytes > ALLOWED_EXCESS * budget:
            print(log[-4000:], file=sys.stderr)
            raise SystemExit(1)


if __name__ == "__main__":
    main()
