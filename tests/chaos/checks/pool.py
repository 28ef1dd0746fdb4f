"""Promise 1 with two workers: one of them is killed again and again below mixed streams."""

from __future__ import annotations

import asyncio
import random

import psutil

from tests.chaos.connection import Closed, Connection, Event
from tests.chaos.record import Record
from tests.chaos.server import server
from tests.e2e.conftest import RunningServer
from tests.waiting import eventually, is_gone

PROMPTS = ("Once upon a time", "The old fox", "A little girl", "The king")


def _body(i: int) -> dict[str, object]:
    noise = {"temperature": 1.0, "seed": i % 8} if i % 2 else {}
    return {"prompt": PROMPTS[i % 4], "max_new_tokens": 40 + 40 * (i % 3), "ignore_eos": True, "stream": True, **noise}


async def _events(url: str, i: int) -> list[Event]:
    """The events of one stream; without any for a connection that was cut."""
    found = []
    async with Connection(url) as connection:
        await connection.send("POST", "/generate", _body(i))
        try:
            answer = await connection.head()
            assert answer.status == 200, f"status {answer.status}"
            async for event in connection.events(answer):
                found.append(event)
        except Closed:
            return []
    return found


def _text(events: list[Event]) -> str:
    return "".join(event.data["text"] for event in events if event.name == "token")


def pool_kills(kills: int, streams: int = 64) -> Record:
    """Every stream ends: with its whole text, or with an `error` event if its worker was killed after it had begun."""
    record = Record("kill")

    async def run(running: RunningServer) -> None:
        url, process = running.url, psutil.Process(running.process.pid)
        alone = {}
        for i in range(24):
            alone[i] = _text(await _events(url, i))
        for kill in range(kills):
            workers = [child for child in process.children() if "--fd" in child.cmdline() and not is_gone(child)]
            tasks = [asyncio.create_task(_events(url, i)) for i in range(streams)]
            await asyncio.sleep(random.Random(kill).random())
            workers[kill % 2].kill()
            failed = 0
            for i, events in enumerate(await asyncio.gather(*tasks)):
                if not record.must(bool(events), f"kill {kill}: stream {i} was cut"):
                    continue
                if events[-1].name == "error":
                    failed += 1
                    record.must(len(events) > 1, f"kill {kill}: stream {i} failed before it had begun")
                    continue
                record.must(_text(events) == alone[i % 24], f"kill {kill}: stream {i} has another text than alone")
            record.most("streams told", failed / streams, 0.75, "of all")
            record.runs += 1
            # Both workers are ready again, so that the next streams are divided among them.
            async with asyncio.timeout(60):
                while running.log.read_text().count("is ready after") <= kill:
                    await asyncio.sleep(0.05)

    with server("--workers", "2", "--max-restarts", "1000") as running:
        asyncio.run(run(running))
        eventually(lambda: running.get("/ready").status_code == 200)
    return record
