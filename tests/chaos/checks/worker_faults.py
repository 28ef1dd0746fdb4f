"""Check promise 1 with two workers: one is killed while it serves mixed requests, and the other one continues."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, field

import psutil

from tests.chaos import facts
from tests.chaos.connection import Answer, Closed, Connection, Event, ask
from tests.chaos.mix import KINDS, request
from tests.chaos.record import Record
from tests.chaos.server import server
from tests.e2e.conftest import RunningServer
from tests.waiting import HANG_SECONDS, eventually

WHOLE_KINDS = (0, 1, 3, 4, 5, 8, 9)
"""Indices of the kinds of requests in `mix` that are answered with status 200 and without a stream."""
STOPPED_SECONDS, DRAIN_SECONDS = 1.2, 0.5
"""Time for which a worker is stopped before it is killed, and time until its last events have arrived."""


@dataclass
class _Stream:
    """One stream. started: set at the first event. cut: whether the connection closed before the end of the stream."""

    events: list[Event] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    cut: bool = False

    async def read(self, url: str, number: int) -> None:
        body = {"prompt": f"{number} times upon a time", "max_new_tokens": 480, "ignore_eos": True, "stream": True}
        async with Connection(url) as connection:
            await connection.send("POST", "/generate", body | {"seed": number, "temperature": 1.0})
            try:
                async for event in connection.events(await connection.head()):
                    self.events.append(event)
                    self.started.set()
            except Closed:
                self.cut = True

    def goes_on(self, start: float, end: float) -> bool:
        """Whether the stream had events between two times (monotonic, in seconds), or had ended before."""
        return any(start < event.at < end for event in self.events) or self.events[-1].at <= start


def _workers(running: RunningServer) -> list[psutil.Process]:
    children = psutil.Process(running.process.pid).children()
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE and "--fd" in child.cmdline()]


def _all_ready(running: RunningServer) -> bool:
    workers = running.get("/info").json()["workers"]
    return bool(workers["ready"] == workers["total"] == 2)


async def _kill_one(running: RunningServer, record: Record, count: int, round_number: int) -> int:
    """Kill one of two workers while `count` streams and `count` other requests run. Returns the lost streams."""
    url = running.url
    victim = _workers(running)[round_number % 2]
    streams = [_Stream() for _ in range(count)]
    reading = [asyncio.create_task(reader.read(url, number)) for number, reader in enumerate(streams)]
    async with asyncio.timeout(HANG_SECONDS):
        await asyncio.gather(*(reader.started.wait() for reader in streams))
    victim.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    mixed = [
        request(WHOLE_KINDS[number % len(WHOLE_KINDS)] + KINDS * (number + count * round_number))
        for number in range(count)
    ]
    asking: list[asyncio.Task[Answer]] = [
        asyncio.create_task(ask(url, "POST", asked.path, asked.body)) for asked in mixed
    ]
    await asyncio.sleep(STOPPED_SECONDS)
    victim.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    record.must((await ask(url, "GET", "/ready")).status == 200, "/ready while the other worker answers")
    async with asyncio.timeout(HANG_SECONDS):
        answers = await asyncio.gather(*asking, return_exceptions=True)
        await asyncio.gather(*reading)
    for asked, answer in zip(mixed, answers, strict=True):
        found = answer.status if isinstance(answer, Answer) else type(answer).__name__
        record.must(found == 200, f"{asked.path} without any output: {found}")
    lost = 0
    for stream in streams:
        last = stream.events[-1]
        if not record.must(not stream.cut and last.name in ("done", "error"), "a stream was cut"):
            continue
        elsewhere = stream.goes_on(stopped + DRAIN_SECONDS, killed)
        if elsewhere:
            record.must(last.name == "done", "a stream of the other worker was lost")
        else:
            lost += 1
            # The worker was stopped before, so all of its events had arrived when it was killed.
            late = [event for event in stream.events if event.at > killed]
            record.must([event.name for event in late] == ["error"], "a stream of the killed worker went on")
            record.most("streams told after", last.at - killed, 1.0, "s")
    return lost


def one_of_two_killed(kills: int, streams: int = 32) -> Record:
    """Kill one of two workers while streams and as many other requests run.

    Requests without any output are answered, streams of the other worker go on, and streams of the killed worker end
    with an `error` event.
    """
    record = Record("kill")
    with server("--workers", "2", "--max-restarts", "1000") as running:
        process = psutil.Process(running.process.pid)
        lost, descriptors = 0, 0
        for number in range(kills):
            lost += asyncio.run(_kill_one(running, record, streams, number))
            eventually(lambda: _all_ready(running))
            descriptors = descriptors or facts.descriptors(process)
            record.runs += 1
        record.must(lost > 0, "no stream had begun on a killed worker, so nothing was checked")
        eventually(lambda: facts.is_idle(running.url))
        record.most("descriptors added", facts.descriptors(process) - descriptors, 2, "")
        record.most("zombies", facts.zombies(process), 0, "")
        restarts = facts.metric(facts.metric_page(running.url), "triptych_worker_restarts_total")
        record.must(restarts == kills, f"{restarts:.0f} restarts were counted after {kills} kills")
    return record


def restarted_by_signal(restarts: int, streams: int = 16) -> Record:
    """Send SIGHUP while streams run. Each stream must end with `done`, and afterwards all workers must be new ones."""
    record = Record("restart")

    async def restart(running: RunningServer) -> None:
        old = _workers(running)
        opened = [_Stream() for _ in range(streams)]
        reading = [asyncio.create_task(stream.read(running.url, number)) for number, stream in enumerate(opened)]
        async with asyncio.timeout(HANG_SECONDS):
            await asyncio.gather(*(stream.started.wait() for stream in opened))
            running.process.send_signal(signal.SIGHUP)
            while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in old):
                record.must((await ask(running.url, "GET", "/ready")).status == 200, "/ready during a restart")
                answer = await ask(running.url, "POST", "/generate", {"prompt": "A", "max_new_tokens": 4})
                record.must(answer.status == 200, f"status {answer.status} during a restart")
                await asyncio.sleep(0.05)
            await asyncio.gather(*reading)
        record.must(all(stream.events[-1].name == "done" for stream in opened), "a stream was dropped")
        record.runs += 1

    with server("--workers", "2") as running:
        for _ in range(restarts):
            asyncio.run(restart(running))
            eventually(lambda: _all_ready(running))
        page = facts.metric_page(running.url)
        record.must(facts.metric(page, "triptych_worker_restarts_total") == 0, "a restart counts as a lost worker")
    return record
