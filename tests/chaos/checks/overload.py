"""Check promise 7: a server that gets more requests than it can serve refuses quickly and stays productive.

Requests arrive at ten times the capacity without waiting for answers, and 1,280 at once.

A request generates 192 to 320 tokens and takes about as long as with a model of useful size. The cores, which the
server and its clients share, can then carry ten times the capacity. Lengths differ so that sequences do not end
together.

Goodput is the tokens that the server generates per second. Only requests that are answered generate any, and none may
fail. Counting tokens measures a few seconds exactly, while whole answers of several seconds would not.

Generator, refusals and steps share the cores. What refusals cost at least is measured in the same rounds: the floor is
the goodput while the arrivals go to another server, which does nothing but refuse.

The speed of a shared machine changes by more than the bound allows within a minute. Arrivals, peak and floor therefore
alternate, each goodput is divided by the mean of the peaks before and after it, and the results are the medians of
these ratios. The time of a refusal is the median of the rounds too.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from tests.chaos import facts, load
from tests.chaos.checks.clients import p99
from tests.chaos.floor import refusing_server
from tests.chaos.pytest_run import run_tests
from tests.chaos.record import Record
from tests.chaos.server import server
from tests.e2e.conftest import RunningServer
from tests.waiting import eventually

_Load = tuple[Any, ...]
"""Arguments of `load.start`."""

PATH = "/generate"
NEW_TOKENS = range(192, 321, 8)
BODIES: list[dict[str, Any]] = [
    # Steps of 7 visit all lengths in an order that mixes long and short ones.
    {"model": "story", "prompt": "Once upon a time", "max_new_tokens": NEW_TOKENS[7 * i % 17], "ignore_eos": True}
    for i in range(17)
]
MEAN_TOKENS = sum(NEW_TOKENS) / len(NEW_TOKENS)
CLIENTS = 384
"""Closed-loop clients for the peak: as many as one of several models may have requests in progress."""
WARM_UP_SHARE = 0.3
"""Time before goodput is counted, as a share of the time after. Refusals are counted from the start."""
SPARE_SECONDS = 1.0
"""Time that a load runs longer than its goodput is counted, because its process takes time to start."""
LEAST_GOODPUT = 0.9
"""Of the peak. On a machine where refusals alone cost more, the goodput beside a server that only refuses is asked."""
MAX_LATE_MILLISECONDS = 10
"""If the generator itself sends requests later than this, the load is not the one that the check asked for."""


def overload(seconds: float = 10.0, factor: float = 10.0, connections: int = 1280, rounds: int = 4) -> Record:
    """Arrivals at `factor` times the measured capacity, `rounds` times; then all connections at once."""
    record = Record("request")
    warm_up = WARM_UP_SHARE * seconds
    with server() as running:
        period = warm_up, seconds
        closed: _Load = "closed", running.url, PATH, BODIES, CLIENTS, sum(period) + SPARE_SECONDS
        peaks = [tokens_per_second(running, closed, *period)[0]]
        shares, floors, refusal_seconds = [], [], []
        rate = factor * peaks[0] / MEAN_TOKENS
        arrivals: _Load = "arrivals", running.url, PATH, BODIES, rate, sum(period) + SPARE_SECONDS
        for number in range(1, rounds + 1):
            goodput, outcome = tokens_per_second(running, arrivals, *period)
            if not record.must(bool(outcome.refusal_seconds), "no request was refused"):
                record.runs += outcome.served
                return record
            peaks.append(tokens_per_second(running, closed, *period)[0])
            shares.append(goodput / statistics.mean(peaks[-2:]))
            refusal_seconds.append(p99(_judge(record, outcome)))
            late = p99(outcome.late_seconds) * 1000
            record.most("p99 lateness of the load generator", late, MAX_LATE_MILLISECONDS, "ms")
            record.details[f"arrivals, round {number}"] = f"goodput {shares[-1]:.2f} of peak; {in_words(outcome)}"
            with refusing_server() as address, load.start("arrivals", address, *arrivals[2:]) as refusing:
                beside, _ = tokens_per_second(running, closed, *period)
                floor = load.outcome_of(refusing)
            peaks.append(tokens_per_second(running, closed, *period)[0])
            floors.append(beside / statistics.mean(peaks[-2:]))
            record.details[f"floor, round {number}"] = f"goodput {floors[-1]:.2f} of peak; {in_words(floor)}"
        record.most("p99 of a refusal, median of the rounds", statistics.median(refusal_seconds) * 1000, 50, "ms")
        record.details["capacity"] = (
            ", ".join(f"{peak_rate:.0f}" for peak_rate in peaks) + " tokens per second between the rounds"
        )
        least = min(LEAST_GOODPUT, statistics.median(floors))
        record.least("goodput, median of the rounds", statistics.median(shares), least, "of peak")
        peak = statistics.mean(peaks[-2:])
        outcome = load.run("at_once", running.url, PATH, BODIES, connections)
        refusals = _judge(record, outcome)
        record.most(f"slowest refusal of {connections} at once", max(refusals), 1.0, "s")
        record.least(f"goodput of {connections} at once", outcome.rate * MEAN_TOKENS / peak, 0.9, "of peak")
    return record


def tokens_per_second(
    running: RunningServer, kind: _Load, warm_up: float, seconds: float
) -> tuple[float, load.Outcome]:
    """Tokens per second that the server generates under a load, after some seconds, and the outcome of the load."""
    with load.start(*kind) as process:
        time.sleep(warm_up)
        began, first = time.monotonic(), _tokens(running)
        time.sleep(seconds)
        last, ended = _tokens(running), time.monotonic()
        outcome = load.outcome_of(process)
    eventually(lambda: facts.is_idle(running.url))
    return (last - first) / (ended - began), outcome


def _tokens(running: RunningServer) -> float:
    return facts.metric(facts.metric_page(running.url), "triptych_generated_tokens_total")


def _judge(record: Record, outcome: load.Outcome) -> list[float]:
    """Record whether all answers of a load are as promised.

    Returns the seconds of each refusal. If nothing was refused, returns a single value that exceeds every limit.
    """
    refusals = outcome.refusal_seconds
    record.runs += outcome.served + len(refusals) + sum(outcome.failures.values())
    record.most("resets", outcome.failures.get("ConnectionResetError", 0), 0, "")
    record.must(not outcome.failures, ", ".join(f"{count} requests: {why}" for why, count in outcome.failures.items()))
    record.must(not outcome.without_retry, f"{outcome.without_retry} refusals without Retry-After")
    record.least("refusals", len(refusals), 1, "")
    return refusals if len(refusals) > 1 else [1e6, 1e6]


def in_words(outcome: load.Outcome) -> str:
    refusals, late = outcome.refusal_seconds, outcome.late_seconds
    return (
        f"{len(late)} arrivals, {len(refusals)} refusals after {p99(refusals) * 1000:.1f} ms (p99), sent "
        f"{p99(late) * 1000:.1f} ms late (p99), {outcome.processor_seconds:.1f} s of a core for the generator"
        if len(refusals) > 1
        else f"{len(late)} arrivals, {len(refusals)} refusals"
    )


def idle(only_reservations: bool = False) -> Record:
    """Promise 32: requests within the limits, alone on a server with several models.

    only_reservations: leave out the tests that wait for memory. With the planted bug they would wait without end.
    """
    tests = ["tests/api/test_idle_limits.py", "tests/operations/test_idle_server.py"]
    if only_reservations:
        tests = [f"{tests[1]}::test_the_second_reservation_of_a_call_may_exceed_the_share_of_its_model"]
    return run_tests(Record("test"), *tests)
