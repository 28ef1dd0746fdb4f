"""Check promise 30: a short request gets its first token soon, even beside the most expensive requests of others."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections.abc import Awaitable, Callable
from statistics import median

from tests.chaos.connection import Closed, Connection, ask
from tests.chaos.record import Record
from tests.chaos.server import server

SHORT = {"prompt": "The old fox", "max_new_tokens": 4, "ignore_eos": True, "stream": True}
TEXT = {"inputs": "The dog chased the cat."}
STREAM = {"prompt": "Once upon a time", "ignore_eos": True, "stream": True, "temperature": 1.0, "max_new_tokens": 400}
PAUSE_SECONDS = 0.05
"""Time between two short requests, and before the first one."""


async def _first_token(url: str) -> float:
    began = time.monotonic()
    with contextlib.suppress(Closed):
        async with Connection(url) as connection:
            await connection.send("POST", "/generate", SHORT)
            async for event in connection.events(await connection.head()):
                if event.name == "token":
                    return event.at - began
    return math.inf


async def _embedding(url: str) -> float:
    answer = await ask(url, "POST", "/embed", TEXT)
    return answer.seconds if answer.status == 200 else math.inf


async def _step_seconds(url: str) -> tuple[float, float]:
    """Sum in seconds and number of the durations of all generation steps so far.

    Steps that embed are left out, because they are much shorter.
    """
    page = (await ask(url, "GET", "/metrics")).body.decode()
    found = [re.findall(rf"^triptych_step_seconds_{part}(\S*) (\S+)", page, re.M) for part in ("sum", "count")]
    total, count = (sum(float(value) for labels, value in lines if "encode" not in labels) for lines in found)
    return total, count


async def _measured(url: str, tries: int) -> tuple[float, float]:
    """Send short requests. Returns the median seconds until the first token, and until the embedding of a text."""
    tokens, vectors = [], []
    for _ in range(tries):
        await asyncio.sleep(PAUSE_SECONDS)
        tokens.append(await _first_token(url))
        vectors.append(await _embedding(url))
    return median(tokens), median(vectors)


async def _unread_streams(url: str, streams: int) -> list[Connection]:
    """Start streams with four answers each. The connections are not read."""
    connections = [Connection(url) for _ in range(streams)]
    for i, connection in enumerate(connections):
        await connection.send("POST", "/generate", STREAM | {"n": 4, "seed": i})
    return connections


async def _many_rows(url: str, prompts: int) -> list[Connection]:
    """Start two requests with the largest allowed number of answers (four for each prompt), one token each."""
    body = {"model": "story", "prompt": ["The old fox"] * prompts, "n": 4, "max_tokens": 1}
    connections = [Connection(url) for _ in range(2)]
    for connection in connections:
        await connection.send("POST", "/v1/completions", body)
    return connections


async def _beside(
    record: Record, url: str, name: str, start: Callable[[], Awaitable[list[Connection]]], tries: int
) -> None:
    alone = await _measured(url, tries)
    connections = await start()
    try:
        before = await _step_seconds(url)
        beside = await _measured(url, tries)
        after = await _step_seconds(url)
    finally:
        for connection in connections:
            connection.close()
    step = (after[0] - before[0]) / max(after[1] - before[1], 1)
    for what, one, other in zip(("first token", "/embed"), alone, beside, strict=True):
        record.most(f"{what} beside {name}, less one step", max(other - step, 0.0) / one, 3.0, "times alone")
    record.runs += 1


def fair_shares(runs: int, streams: int = 300, prompts: int = 1024, tries: int = 15) -> Record:
    """Promise 30: a short request beside expensive ones takes at most three times as long as alone, plus one step.

    runs: number of repetitions. streams: number of unread streams. prompts: number of prompts of the large requests.
    tries: number of short requests of which the median is taken.
    """
    record = Record("dear request")

    async def check(url: str) -> None:
        for _ in range(runs):
            await _beside(record, url, "unread streams", lambda: _unread_streams(url, streams), tries)
            await _beside(record, url, "4,096 rows", lambda: _many_rows(url, prompts), tries)

    with server() as running:
        asyncio.run(check(running.url))
    return record
