"""Check promise 7: a server that gets more requests than it can serve refuses quickly and stays productive.

Requests arrive at ten times the capacity without waiting for answers, and 1,280 at once.

A request generates 192 to 320 tokens, so that it takes about as long as with a model of useful size. The capacity in
requests per second is then so low that the generator can send ten times as many on the same cores. Lengths differ so
that sequences do not end together.

Goodput is the number of tokens that the server generates per second, all of them for requests that are answered; no
request may fail. Counting tokens is exact for a few seconds, but counting answers, which take several seconds, is not.

The generator, the refusals and the engine steps share the cores. Therefore a floor is measured in the same rounds: the
goodput while all arrivals go to a second server, which does nothing but refuse.

Within a minute, the speed of a shared machine changes by more than the bound allows. Therefore arrivals, peak and floor
are measured alternately. Each goodput is divided by the mean of the peaks before and after it, and the results are the
medians of these ratios. The time of a refusal is also the median over the rounds.
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
    # Multiples of 7 modulo 17 visit all lengths in an order that mixes long and short ones.
    {"model": "story", "prompt": "Once upon a time", "max_new_tokens": NEW_TOKENS[7 * i % 17], "ignore_eos": True}
    for i in range(17)
]
MEAN_TOKENS = sum(NEW_TOKENS) / len(NEW_TOKENS)
CLIENTS = 384
"""Number of clients that measure the peak, each with one request at a time. It is the limit of requests per model."""
WARM_UP_SHARE = 0.3
"""Time before goodput is counted, as a share of the time after. Refusals are counted from the start."""
SPARE_SECONDS = 1.0
"""Additional time for which a load runs, because its process takes time to start."""
LEAST_GOODPUT = 0.9
"""Least goodput as a share of the peak. If the floor is lower, the floor is the least goodput."""
MAX_LATE_MILLISECONDS = 10
"""Longest delay with which the generator may send a request. With a longer one, the load is not the intended one."""


def overload(seconds: float = 10.0, factor: float = 10.0, connections: int = 1280, rounds: int = 4) -> Record:
    """Promise 7: measure goodput and refusals under overload.

    seconds: duration of each load. factor: rate of arrivals as a multiple of the measured capacity.
    connections: number of requests that are sent at once at the end. rounds: number of rounds.
    """
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
    """Run a load. Returns the tokens per second that the server generates, and the outcome of the load.

    warm_up: seconds before tokens are counted. seconds: time for which they are counted.
    """
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
    """Record whether all answers of a load are correct: none failed, and refusals have `Retry-After`.

    Returns the seconds of each refusal. With fewer than two refusals, returns values that exceed every limit.
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
    """Promise 32: a single request within the limits is never refused, also on a server with several models.

    only_reservations: run only the test of reservations. With the planted bug, the other tests would wait without end.
    """
    tests = ["tests/api/test_idle_limits.py", "tests/operations/test_idle_server.py"]
    if only_reservations:
        tests = [f"{tests[1]}::test_the_second_reservation_of_a_call_may_exceed_the_share_of_its_model"]
    return run_tests(Record("test"), *tests)
