"""Promise 7: overload is refused, not queued."""

from __future__ import annotations

from typing import Any

from tests.chaos.checks.clients import p99
from tests.chaos.load import Outcome, run
from tests.chaos.record import Record
from tests.chaos.server import server

PATH = "/generate"
BODY: dict[str, Any] = {"model": "story", "prompt": "Once upon a time", "max_new_tokens": 64, "ignore_eos": True}
PEAK_CONNECTIONS = 128


def arrivals(runs: int, seconds: float = 10.0, times: float = 10.0) -> Record:
    """Open-loop arrivals at several times the capacity: quick refusals with `Retry-After`, and no loss of goodput."""
    record = Record("burst")
    with server() as running:
        run("closed", running.url, PATH, BODY, PEAK_CONNECTIONS, 2)
        for _ in range(runs):
            peak = run("closed", running.url, PATH, BODY, PEAK_CONNECTIONS, seconds).rate
            outcome = run("arrivals", running.url, PATH, BODY, times * peak, seconds)
            _check(record, outcome, 0.05)
            record.least("goodput", outcome.rate / peak, 0.9, "of peak")
    return record


def connections(runs: int, count: int = 1280, seconds: float = 10.0) -> Record:
    """Many connections at once: every refusal within a second, no resets, no loss of goodput."""
    record = Record("burst")
    with server() as running:
        run("closed", running.url, PATH, BODY, PEAK_CONNECTIONS, 2)
        for _ in range(runs):
            peak = run("closed", running.url, PATH, BODY, PEAK_CONNECTIONS, seconds).rate
            outcome = run("at_once", running.url, PATH, BODY, count)
            _check(record, outcome, None)
            record.most("slowest refusal", max(outcome.refusal_seconds, default=0.0), 1.0, "s")
            record.least("goodput", outcome.rate / peak, 0.9, "of peak")
    return record


def _check(record: Record, outcome: Outcome, p99_seconds: float | None) -> None:
    record.runs += 1
    record.must(outcome.served > 0, "nothing was served")
    record.must(bool(outcome.refusal_seconds), "nothing was refused")
    record.must(not outcome.without_retry, f"{outcome.without_retry} refusals without Retry-After")
    for reason, number in outcome.failures.items():
        record.must(False, f"{number} requests: {reason}")
    if p99_seconds is not None and outcome.refusal_seconds:
        record.most("p99 of refusals", p99(outcome.refusal_seconds), p99_seconds, "s")
