"""Put load on a server: at fixed arrival times (open loop), or with a fixed number of requests at a time (closed loop).

In an open loop, a request is due at its arrival time even if earlier answers are late, and its latency counts from that
time. A client that waited for answers would hide the time that requests spend in a queue (coordinated omission).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Job:
    """One request to send: its prompt, and the maximum number of tokens of the answer."""

    prompt: str
    max_tokens: int


@dataclass
class Sample:
    """Times and result of one request. All times are seconds of the benchmark's clock.

    due: time at which the request should be sent; latencies count from this time.
    sent: time at which the request was sent.
    times: times at which parts of the answer arrived.
    ended: time at which the answer was complete, or failed.
    prompt_tokens, completion_tokens: numbers of tokens that the server reported; None if it reported no numbers.
    cached_tokens: prompt tokens that the server took from its prefix cache; None if it did not report them.
    parts: seconds of each part of the request's time in the server, if they were asked for.
    error: class of the failure, such as `timeout`; None for success. message: the server's error message, or empty.
    """

    due: float
    sent: float
    times: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    message: str = ""


Send = Callable[[Job, float], Awaitable[Sample]]
"""Function that sends a job that is due at a time, and returns its sample. It does not raise if the server fails."""


class Clock(Protocol):
    """A monotonic clock, in seconds."""

    def now(self) -> float: ...

    async def sleep_until(self, when: float) -> None: ...


class MonotonicClock:
    def now(self) -> float:
        return time.perf_counter()

    async def sleep_until(self, when: float) -> None:
        await asyncio.sleep(max(0.0, when - self.now()))


def poisson_arrivals(rate: float, random_numbers: random.Random) -> Iterable[float]:
    """Yield the random arrival times of a Poisson process without end, in seconds from the start.

    rate: mean number of arrivals per second.
    """
    arrival = 0.0
    while True:
        arrival += random_numbers.expovariate(rate)
        yield arrival


async def open_loop(
    jobs: Iterable[Job], arrivals: Iterable[float], send: Send, clock: Clock, seconds: float | None = None
) -> list[Sample]:
    """Send each job at its arrival time, and wait for all answers. Returns a sample of each job.

    arrivals: arrival time of each job, in seconds from the start, ascending.
    seconds: time from the start after which no request is sent; None for no limit.
    """
    start = clock.now()
    running: list[asyncio.Task[Sample]] = []
    try:
        for job, arrival in zip(jobs, arrivals, strict=False):
            if seconds is not None and arrival > seconds:
                break
            await clock.sleep_until(start + arrival)
            running.append(asyncio.ensure_future(send(job, start + arrival)))
        return await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()


async def closed_loop(
    jobs: Iterable[Job], concurrency: int, send: Send, clock: Clock, seconds: float | None = None
) -> list[Sample]:
    """Keep `concurrency` requests in progress until all jobs are sent or the time is over, and wait for all answers.

    seconds: time from the start after which no request is sent; None for no limit.
    Returns a sample of each request, in the order in which they ended.
    """
    start = clock.now()
    waiting = iter(jobs)
    samples: list[Sample] = []

    async def work() -> None:
        while seconds is None or clock.now() - start < seconds:
            job = next(waiting, None)
            if job is None:
                return
            samples.append(await send(job, clock.now()))

    async with asyncio.TaskGroup() as workers:
        for _ in range(concurrency):
            workers.create_task(work())
    return samples


def span_seconds(samples: Sequence[Sample]) -> float:
    """Seconds between the due time of the first request and the end of the last answer."""
    return max(sample.ended for sample in samples) - min(sample.due for sample in samples)
