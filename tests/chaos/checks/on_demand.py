"""Check promises 39 and 40: models are loaded and unloaded on demand, and loading disturbs no stream."""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from pathlib import Path

from tests.chaos.checks.clients import p99
from tests.chaos.checks.latency import gaps_beside, no_work, wait_beside
from tests.chaos.connection import ask
from tests.chaos.record import Record
from tests.chaos.server import command, server
from tests.soak.checkpoints import DEMO, demo_copies, large_llama
from tests.soak.models import ALLOWED_EXCESS, MOST_KEPT, soak


def come_and_go(models: int, seconds: float, requests: int) -> Record:
    """Promise 39: serve copies of the demo models with a memory budget of a quarter of their size.

    One copy is broken, and a worker is killed meanwhile. Every answer must be right, and the budget must hold.
    """
    record = Record("request")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "models").mkdir()
        kinds = demo_copies(directory / "models", models)
        numbers = soak(directory, kinds, 0.25, seconds, requests, 6, command())
    record.runs = numbers.requests
    record.most("wrong answers", len(numbers.wrong), 0, "answers")
    record.most("lost requests", len(numbers.lost), 0, "requests")
    record.most("memory above the empty server", numbers.peak_mib / numbers.budget_mib, ALLOWED_EXCESS, "budgets")
    record.most("memory kept 5 s after an unload", numbers.most_kept, MOST_KEPT, "of the model")
    record.most("memory counted", numbers.peak_counted_mib / numbers.budget_mib, 1.0, "budgets")
    record.least("models unloaded for others", numbers.unloads, 10, "unloads")
    record.details["failures"] = "; ".join([*numbers.lost, *numbers.wrong][:5])
    return record


def loading(runs: int, layers: int, streams: int = 16) -> Record:
    """Promise 40: loading another model from its checkpoint hardly changes the gaps between tokens of running streams.

    layers: number of layers of the loaded model. A LLaMA of this shape with 16 layers has 1.1 billion parameters.
    """
    record = Record("load")
    gaps: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        large_llama(Path(folder), layers)
        models = (f"story={DEMO / 'story'}", f"large={folder}")
        with server(*models, "--preload", "story", "--device", "cpu") as running:
            url = running.url

            async def load() -> None:
                answer = await ask(url, "POST", "/models/large/load", {})
                assert answer.status == 200, f"status {answer.status} {answer.body[:200]!r}"

            asyncio.run(gaps_beside(url, no_work, streams, 400, 200))
            for _ in range(runs):
                for name, work in (("alone", wait_beside), ("a load", load)):
                    gaps[name] += asyncio.run(gaps_beside(url, work, streams, 400, 200))
                asyncio.run(ask(url, "POST", "/models/large/unload", {}))
                record.runs += 1
    record.details["p99 gap alone"] = f"{1000 * p99(gaps['alone']):.1f} ms"
    record.most("p99 gap while a model is loaded", p99(gaps["a load"]) / p99(gaps["alone"]), 1.5, "times alone")
    return record
