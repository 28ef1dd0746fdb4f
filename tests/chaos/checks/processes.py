"""Check promises 1, 2, 3, 19, 26 and 38: workers and helpers that die or hang, a server that dies, and shutdown."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from tests.chaos import facts
from tests.chaos.checks.worker_faults import one_of_two_killed, restarted_by_signal
from tests.chaos.connection import Closed, Connection, Event, ask
from tests.chaos.pytest_run import run_tests
from tests.chaos.record import Record
from tests.chaos.server import command, server
from tests.e2e.conftest import REPOSITORY, RunningServer
from tests.waiting import eventually, is_gone

TOLD_SECONDS = 1.0
LONG = {"prompt": "Once upon a time", "max_new_tokens": 480, "ignore_eos": True, "stream": True}


async def _read(url: str, body: dict[str, object], started: asyncio.Event) -> list[Event]:
    """All events of one stream, even if it is cut. started: set at the first event."""
    found = []
    async with Connection(url) as connection:
        await connection.send("POST", "/generate", body)
        try:
            async for event in connection.events(await connection.head()):
                found.append(event)
                started.set()
        except Closed:
            pass
    return found


async def _start_streams(url: str, count: int) -> list[asyncio.Task[list[Event]]]:
    """Start streams and wait until each has an event."""
    started = [asyncio.Event() for _ in range(count)]
    tasks = [
        asyncio.create_task(_read(url, LONG | {"seed": i, "temperature": 1.0}, event))
        for i, event in enumerate(started)
    ]
    async with asyncio.timeout(60):
        await asyncio.gather(*(event.wait() for event in started))
    return tasks


async def _status(url: str, path: str) -> int:
    try:
        return (await ask(url, "GET", path)).status
    except (OSError, Closed):
        return 0


async def _seconds_until(url: str, status: int, began: float, limit: float) -> float:
    """Seconds from the time `began` until `/ready` has this status; infinity if that takes longer than `limit`."""
    while time.monotonic() - began < limit:
        if await _status(url, "/ready") == status:
            return time.monotonic() - began
        await asyncio.sleep(0.005)
    return float("inf")


def killed_workers(kills: int, streams: int = 64, pool: int = 0) -> Record:
    """Promise 1: `kill -9` of the worker while streams are open.

    pool: number of kills of one of two workers of a second server. They happen at the same time as the others, because
        most of the time is the pause before a worker is restarted.
    """
    with ThreadPoolExecutor(1) as thread:
        of_pool = thread.submit(one_of_two_killed, pool) if pool else None
        record = _only_worker_killed(kills, streams)
        return record if of_pool is None else record.include(of_pool.result(), "two workers: ")


def _only_worker_killed(kills: int, streams: int) -> Record:
    record = Record("kill")

    async def kill(running: RunningServer) -> None:
        tasks = await _start_streams(running.url, streams)
        worker = running.worker()
        began = time.monotonic()
        worker.send_signal(signal.SIGKILL)
        record.most("/ready is 503 after", await _seconds_until(running.url, 503, began, 2), 0.25, "s")
        done, late = await asyncio.wait(tasks, timeout=10)
        record.must(not late, f"{len(late)} streams never ended")
        for task in late:
            task.cancel()
        for events in (task.result() for task in done):
            last = events[-1]
            record.must(last.name in ("done", "error"), f"a stream ended with {last.name}")
            # A stream may have ended just before the kill. If it ended later with `done`, the request was repeated.
            record.must(last.name == "error" or last.at - began < TOLD_SECONDS, "a stream of the killed worker went on")
            record.most("streams told after", last.at - began, TOLD_SECONDS, "s")
        while time.monotonic() - began < 20:
            answer = await ask(running.url, "POST", "/generate", {"prompt": "A", "max_new_tokens": 4})
            if answer.status == 200:
                break
            await asyncio.sleep(0.05)
        record.most("next answer after", time.monotonic() - began, 10.0, "s")
        record.runs += 1

    with server("--max-restarts", "1000") as running:
        process = psutil.Process(running.process.pid)
        asyncio.run(kill(running))
        before = facts.descriptors(process)
        for _ in range(kills - 1):
            asyncio.run(kill(running))
        time.sleep(0.5)
        record.most("descriptors added", facts.descriptors(process) - before, 2, "")
        record.most("zombies", facts.zombies(process), 0, "")
        blocks = facts.metric(facts.metric_page(running.url), "triptych_kv_blocks_used")
        record.most("blocks in use on the idle server", blocks, 0, "")
    return record


def hung_workers(hangs: int) -> Record:
    """Promise 2: a worker that hangs (SIGSTOP) is detected and replaced. hangs: number of repetitions."""
    record = Record("hang")

    async def hang(running: RunningServer) -> None:
        worker = running.worker()
        began = time.monotonic()
        worker.send_signal(signal.SIGSTOP)
        try:
            record.most("/ready is 503 after", await _seconds_until(running.url, 503, began, 5), 3.0, "s")
            record.most("ready again after", await _seconds_until(running.url, 200, began, 20), 15.0, "s")
            record.must(is_gone(worker), "the hung worker lives")
        finally:
            if not is_gone(worker):
                worker.send_signal(signal.SIGCONT)
        record.runs += 1

    with server() as running:
        for _ in range(hangs):
            asyncio.run(hang(running))
    return record


def orphans(kills: int) -> Record:
    """Promise 3: workers exit after `kill -9` of the HTTP process. Also checks a port in use. kills: repetitions."""
    record = Record("kill")
    for _ in range(kills):
        with server() as running:
            family = facts.children(psutil.Process(running.process.pid))
            began = time.monotonic()
            running.process.kill()
            running.process.wait()
            while (left := [process for process in family if not is_gone(process)]) and time.monotonic() - began < 5:
                time.sleep(0.01)
            record.most("last child gone after", time.monotonic() - began, 2.0, "s")
            for process in left:
                process.kill()
            record.runs += 1
    with socket.create_server(("127.0.0.1", 0)) as taken:
        began = time.monotonic()
        port = str(taken.getsockname()[1])
        done = subprocess.run([*command(), "serve", "--port", port], cwd=REPOSITORY, capture_output=True, timeout=60)
        record.must(done.returncode == 2, f"a port in use: exit status {done.returncode}")
        record.most("port in use: failed after", time.monotonic() - began, 2.0, "s")
    return record


def drains(count: int, streams: int = 32, grace: float = 1.5, restarts: int = 0) -> Record:
    """Promise 19: SIGTERM lets open streams end within the grace time. Every second time, this time is too short.

    restarts: how often SIGHUP replaces two workers afterwards.
    """
    record = Record("shutdown")

    async def drain(running: RunningServer, limit: float) -> None:
        tasks = await _start_streams(running.url, streams)
        began = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        record.most("/ready is 503 after", await _seconds_until(running.url, 503, began, 2), 0.25, "s")
        for events in await asyncio.gather(*tasks):
            record.must(events[-1].name in ("done", "error"), "a stream was cut without an event")
            record.must(limit == grace or events[-1].name == "done", "a stream was cut within the grace time")
        while running.process.poll() is None and time.monotonic() - began < limit + 10:
            await asyncio.sleep(0.01)
        record.most("exit after the grace time", time.monotonic() - began - limit, 2.0, "s")
        record.must(running.process.poll() == 0, f"exit status {running.process.poll()}")

    for number in range(count):
        limit = grace if number % 2 else 30.0
        with server("--grace-seconds", str(limit)) as running:
            family = facts.children(psutil.Process(running.process.pid))
            asyncio.run(drain(running, limit))
            record.must(all(map(is_gone, family)), "a child is left")
            record.runs += 1
    if restarts:
        record.include(restarted_by_signal(restarts), "SIGHUP: ")
    return record


def _new_worker(server_process: psutil.Process, old: psutil.Process | None, seconds: float) -> psutil.Process | None:
    """Wait for a worker of the server other than `old`, and return it; None if there is none after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and server_process.is_running():
        for child in server_process.children():
            if child != old and "--fd" in child.cmdline() and not is_gone(child):
                return child
        time.sleep(0.005)
    return None


def loading(stops: int, crashes: int = 5, limit: float = 60.0) -> Record:
    """Promise 26: a worker is stopped while it loads; then workers are killed as soon as they are ready."""
    record = Record("worker")
    for _ in range(stops):
        with tempfile.TemporaryFile() as output:
            start = [*command(), "serve", "--port", "0"]
            process = subprocess.Popen(start, cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT)
            worker = None
            try:
                above = psutil.Process(process.pid)
                worker = _new_worker(above, None, 30)
                assert worker is not None, "no worker was started"
                time.sleep(0.3)
                worker.send_signal(signal.SIGSTOP)
                began = time.monotonic()
                replaced = _new_worker(above, worker, limit + 15)
                record.most("replaced after", time.monotonic() - began, limit, "s")
                record.must(replaced is not None, "a worker stopped while loading is not replaced")
                record.runs += 1
            finally:
                if worker is not None and not is_gone(worker):
                    worker.kill()
                process.kill()
                process.wait()
    if not crashes:
        return record
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command(), "serve", "--port", "0"], cwd=REPOSITORY, stdout=output, stderr=output
            )
        running = RunningServer(process, log)
        try:
            running.wait_ready()
            began, worker = time.monotonic(), None
            for _ in range(crashes):
                worker = _new_worker(psutil.Process(process.pid), worker, 60)
                if worker is None:
                    break
                eventually(lambda: process.poll() is not None or running.get("/ready").status_code == 200)
                if process.poll() is not None:
                    break
                worker.kill()
                record.runs += 1
            while process.poll() is None and time.monotonic() - began < 90:
                time.sleep(0.05)
            record.must(process.poll() not in (None, 0), f"exit status {process.poll()} after {crashes} crashes")
            record.must("triptych: " in log.read_text(), "no reason in the output")
        finally:
            process.kill()
            process.wait()
    return record


def helpers() -> Record:
    """Promise 38: helper processes may hang or die, and disks may be full."""
    return run_tests(
        Record("test"),
        "tests/test_line_process.py",
        "tests/operations/test_glossary_store.py",
        "tests/test_output.py",
        "tests/wire/test_full_disk.py",
    )
