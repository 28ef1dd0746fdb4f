"""Offer load to a server: at fixed arrival times (open loop), or a fixed number of requests at a time (closed loop).

In an open loop a request is due at its arrival time, however late earlier answers are, and its latencies count from
that time. A client that waited for answers would hide the time that requests spend in a queue (coordinated omission).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Job:
    """One request to send: its prompt, and the maximum number of tokens of the answer."""

    prompt: str
    max_tokens: int


@dataclass
class Sample:
    """Times and result of one request. All times are of the clock.

    due: time at which the request should be sent; latencies count from here.
    sent: time at which it was sent.
    times: times at which parts of the answer arrived.
    ended: time at which the answer was complete, or failed.
    prompt_tokens, completion_tokens: as the server counted them; None if it did not.
    cached_tokens: prompt tokens that the server did not compute again; None if it did not say.
    error: class of the failure, or None. message: what the server said about it, if anything.
    """

    due: float
    sent: float
    times: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None
    message: str = ""


Send = Callable[[Job, float], Awaitable[Sample]]
"""Sends a job, due at a time, and returns its sample. Never raises for a failure of the server."""


class Clock(Protocol):
    """A clock that never goes back, in seconds."""

    def now(self) -> float: ...

    async def sleep_until(self, when: float) -> None: ...


class MonotonicClock:
    def now(self) -> float:
        return time.perf_counter()

    async def sleep_until(self, when: float) -> None:
        await asyncio.sleep(max(0.0, when - self.now()))


def poisson_arrivals(rate: float, random_numbers: random.Random) -> Iterable[float]:
    """Arrival times in seconds from the start, without end. rate: mean number of arrivals per second."""
    arrival = 0.0
    while True:
        arrival += random_numbers.expovariate(rate)
        yield arrival


async def open_loop(
    jobs: Iterable[Job], arrivals: Iterable[float], send: Send, clock: Clock, seconds: float | None = None
) -> list[Sample]:
    """Send each job at its arrival time, and wait for all answers.

    seconds: no request arrives after this time.
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
    """Keep a number of requests in progress until the jobs or the time are used up, and wait for all answers."""
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
    """Seconds from the first request to the last answer."""
    return max(sample.ended for sample in samples) - min(sample.due for sample in samples)
