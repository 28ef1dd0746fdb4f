"""Promise 7: open-loop arrivals above capacity, and many connections at once."""

from __future__ import annotations

from typing import Any

from tests.chaos.checks.clients import p99
from tests.chaos.load import Outcome, run
from tests.chaos.record import Record
from tests.chaos.server import server

PATH = "/generate"
BODY: dict[str, Any] = {"model": "story", "prompt": "Once upon a time", "max_new_tokens": 64, "ignore_eos": True}
CLIENTS = 128
"""Closed-loop clients that reach the peak."""


def overload(seconds: float = 10.0, factor: float = 10.0, connections: int = 1280) -> Record:
    """Arrivals at `factor` times the measured capacity; then all connections at once."""
    record = Record("request")
    with server() as running:
        run("closed", running.url, PATH, BODY, CLIENTS, seconds / 4)
        peak = run("closed", running.url, PATH, BODY, CLIENTS, seconds).rate
        outcome = run("arrivals", running.url, PATH, BODY, factor * peak, seconds)
        refusals = _judge(record, outcome)
        record.most("p99 of a refusal", p99(refusals) * 1000 if len(refusals) > 1 else 1e9, 50, "ms")
        record.least("goodput", outcome.rate / peak, 0.9, "of peak")
        peak = run("closed", running.url, PATH, BODY, CLIENTS, seconds).rate
        outcome = run("at_once", running.url, PATH, BODY, connections)
        refusals = _judge(record, outcome)
        record.most(f"slowest refusal of {connections} at once", max(refusals, default=1e9), 1.0, "s")
        record.least(f"goodput of {connections} at once", outcome.rate / peak, 0.9, "of peak")
    return record


def _judge(record: Record, outcome: Outcome) -> list[float]:
    """Check all answers. Returns the times of the refusals."""
    refusals = outcome.refusal_seconds
    record.runs += outcome.served + len(refusals) + sum(outcome.failures.values())
    record.most("resets", outcome.failures.get("reset", 0), 0, "")
    record.must(not outcome.failures, ", ".join(f"{count} requests: {why}" for why, count in outcome.failures.items()))
    record.must(not outcome.without_retry, f"{outcome.without_retry} refusals without Retry-After")
    record.least("refusals", len(refusals), 1, "")
    return refusals
