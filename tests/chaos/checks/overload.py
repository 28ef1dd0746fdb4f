"""Promise 7: open-loop arrivals above capacity, and many connections at once."""

from __future__ import annotations

import asyncio
import time

from tests.chaos.checks.clients import p99
from tests.chaos.connection import Answer, Closed, Connection, ask
from tests.chaos.record import Record
from tests.chaos.server import server

BODY = {"prompt": "Once upon a time", "max_new_tokens": 32, "ignore_eos": True, "temperature": 1.0}
CLIENTS = 64
"""Closed-loop clients that reach the peak."""


async def _peak(url: str, seconds: float) -> float:
    """Answers per second with as many clients as a step has rows."""
    end, answers = time.monotonic() + seconds, 0

    async def client(i: int) -> None:
        nonlocal answers
        async with Connection(url) as connection:
            while time.monotonic() < end:
                answer = await connection.request("POST", "/generate", BODY | {"seed": i})
                answers += answer.status == 200

    await asyncio.gather(*map(client, range(CLIENTS)))
    return answers / seconds


async def _attempt(url: str, i: int) -> Answer:
    """One request on a new connection. Status 0: the connection was reset, or closed without an answer."""
    began = time.monotonic()
    try:
        answer = await ask(url, "POST", "/generate", BODY | {"seed": i})
    except (Closed, OSError):
        answer = Answer(0, {})
    answer.seconds = time.monotonic() - began
    return answer


def _judge(record: Record, answers: list[Answer]) -> list[float]:
    """Check the statuses of all answers. Returns the times of the refusals."""
    record.runs += len(answers)
    record.most("resets", sum(one.status == 0 for one in answers), 0, "")
    record.must(all(one.status in (0, 200, 429, 503) for one in answers), "another status than 200, 429 and 503")
    refusals = [one for one in answers if one.status in (429, 503)]
    record.must(all("retry-after" in one.headers for one in refusals), "a refusal without Retry-After")
    record.least("refusals", len(refusals), 1, "")
    return [one.seconds for one in refusals]


def overload(seconds: float = 10.0, factor: float = 10.0, connections: int = 1280) -> Record:
    """Arrivals at `factor` times the measured capacity; then all connections at once."""
    record = Record("request")

    async def open_loop(url: str, rate: float) -> list[Answer]:
        began, tasks = time.monotonic(), []
        while (now := time.monotonic() - began) < seconds:
            tasks += [asyncio.create_task(_attempt(url, len(tasks) + i)) for i in range(int(now * rate) - len(tasks))]
            await asyncio.sleep(0.002)
        return await asyncio.gather(*tasks)

    async def run(url: str) -> None:
        await _peak(url, seconds / 4)
        peak = await _peak(url, seconds / 2)
        began = time.monotonic()
        answers = await open_loop(url, peak * factor)
        goodput = sum(one.status == 200 for one in answers) / (time.monotonic() - began)
        refusals = _judge(record, answers)
        record.most("p99 of a refusal", p99(refusals) * 1000 if len(refusals) > 1 else 1e9, 50, "ms")
        record.least("goodput", goodput / peak, 0.9, "of peak")
        began = time.monotonic()
        answers = await asyncio.gather(*(_attempt(url, i) for i in range(connections)))
        goodput = sum(one.status == 200 for one in answers) / (time.monotonic() - began)
        refusals = _judge(record, answers)
        record.most(f"slowest refusal of {connections} at once", max(refusals, default=1e9), 1.0, "s")
        record.least(f"goodput of {connections} at once", goodput / peak, 0.9, "of peak")

    with server() as running:
        asyncio.run(run(running.url))
    return record
