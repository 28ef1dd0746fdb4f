"""Check promises 4, 5, 9, 11 and 12: the scheduler, the block manager and batches."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.chaos import facts, mix
from tests.chaos.connection import Connection, ask
from tests.chaos.pytest_run import run_tests
from tests.chaos.record import Record
from tests.chaos.server import server
from tests.engine.engine_states import explore
from tests.engine.simulation import Simulation
from tests.waiting import eventually

QUARTER_OF_THE_DEMAND = "2560K"
"""KV cache size for a quarter of the tokens of 64 sequences of 120 tokens; the demo model needs 1.25 KiB per token."""


def _interleave(number: int, events: int) -> str | None:
    """Run one random sequence of events. Returns the first error, or None.

    number: index of the sequence, which is the seed. events: number of events.
    """
    cross, prefix, drafts = [(False, False, False), (True, False, True), (False, True, False), (False, True, True)][
        number % 4
    ]
    simulation = Simulation(random.Random(f"chaos{number}"), cross, prefix, drafts)
    try:
        simulation.run_random_events(events)
    except AssertionError as error:
        return f"interleaving {number}: {str(error)[:200] or 'free + used is not the total'}"
    return None


def interleavings(count: int, events: int = 150, processes: int = 1) -> Record:
    """Promise 5: sequences are added, stepped, aborted, finished, preempted and failed in random order.

    After each event, the KV blocks and the tokens are checked. count: number of random orders. events: events in each.
    """
    record = Record("interleaving", runs=count)
    if processes == 1:
        found = [_interleave(number, events) for number in range(count)]
    else:
        # Forked processes have the planted bug too.
        with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
            found = list(pool.map(partial(_interleave, events=events), range(count), chunksize=50))
    for failure in found:
        record.must(failure is None, failure or "")
    try:
        record.runs += explore(count // 4)["runs"]
    except Exception as error:
        record.must(False, f"an interleaving of the whole engine: {str(error)[:200]}")
    return record


def small_pool(requests: int, clients: int = 64) -> Record:
    """Promise 9: with many more requests than the KV pool can hold, each gets the same text as alone."""
    record = Record("request")
    with server("--kv-cache-memory", QUARTER_OF_THE_DEMAND) as running:

        def body(i: int) -> dict[str, object]:
            noise = {"temperature": 0.9, "seed": i} if i % 2 else {}
            prompt = f"{mix.PROMPTS[i % 4]} {i % 40}"
            return {"prompt": prompt, "max_new_tokens": 120, "ignore_eos": True, "timeout_ms": 600_000, **noise}

        async def text(connection: Connection, i: int) -> tuple[int, str]:
            answer = await connection.request("POST", "/generate", body(i))
            return answer.status, answer.json["choices"][0]["text"] if answer.status == 200 else answer.body.decode()

        async def client(numbers: object, texts: dict[int, tuple[int, str]]) -> None:
            async with Connection(running.url) as connection:
                for i in numbers:  # type: ignore[attr-defined]
                    texts[i] = await text(connection, i)

        async def together(count: int, clients: int) -> dict[int, tuple[int, str]]:
            texts: dict[int, tuple[int, str]] = {}
            numbers = iter(range(count))
            await asyncio.gather(*(client(numbers, texts) for _ in range(clients)))
            return texts

        alone = asyncio.run(together(min(requests, 40), 1))
        before = facts.metric(facts.metric_page(running.url), "triptych_preemptions_total")
        for i, (status, found) in sorted(asyncio.run(together(requests, clients)).items()):
            record.runs += 1
            record.must(status == 200, f"request {i}: status {status}")
            if i in alone:
                record.must((status, found) == alone[i], f"request {i} has another text than alone")
        page = facts.metric_page(running.url)
        record.least("preemptions", facts.metric(page, "triptych_preemptions_total") - before, 1, "")
        eventually(lambda: facts.is_idle(running.url))
    return record


def alone_equals_batched(families: str = "") -> Record:
    """Promise 11: a request has the same result alone, in a batch, in chunks, preempted, with prefix hits and drafts.

    families: expression that selects the families to test; empty for all.
    """
    selected = ["-k", families] if families else []
    record = run_tests(
        Record("test"),
        "tests/invariance/test_alone_equals_batched.py",
        "tests/invariance/test_speculation.py",
        *selected,
    )
    return record


def bad_rows() -> Record:
    """Promise 12: a request with NaN or infinite values fails alone; fifteen others in the batch are not affected."""
    return run_tests(Record("test"), "tests/invariance/test_bad_row_fails_alone.py")


def leaving(closes: int, mates: int = 4) -> Record:
    """Promise 4: if clients close their connections in any phase, with or without streaming, KV blocks are freed soon.

    closes: number of closed connections. mates: number of other requests that run meanwhile.
    """
    record = Record("close")
    phases = ("before the answer", "after the head", "after some events")

    async def leave(url: str, i: int, rng: random.Random, rows: int = 0) -> None:
        prompt = "Once upon a time " * (1 + i % 12)
        streams = i % 2 == 0
        body = {"prompt": prompt, "max_new_tokens": 400, "ignore_eos": True, "stream": streams, "n": rows or 1 + i % 3}
        connection = Connection(url)
        await connection.send("POST", "/generate", body | {"temperature": 1.0, "seed": i})
        phase = phases[i // 2 % 3]
        if phase == "before the answer" or not streams:
            await asyncio.sleep(rng.random() * 0.05)
        else:
            answer = await connection.head()
            if not record.must(answer.status == 200, f"close {i}: status {answer.status}"):
                connection.close()
                return
            if phase == "after some events":
                left = rng.randint(1, 6)
                async for _ in connection.events(answer):
                    left -= 1
                    if not left:
                        break
        connection.close()

    async def mate(url: str, i: int) -> str:
        body = {
            "prompt": f"{mix.PROMPTS[i % 4]}",
            "max_new_tokens": 200,
            "ignore_eos": True,
            "seed": i,
            "temperature": 0.8,
        }
        answer = await ask(url, "POST", "/generate", body)
        return answer.json["choices"][0]["text"] if answer.status == 200 else f"status {answer.status}"

    async def burst(url: str, first: int, count: int) -> list[str]:
        rng = random.Random(first)
        texts = [asyncio.create_task(mate(url, i)) for i in range(mates)]
        await asyncio.gather(*(leave(url, first + i, rng) for i in range(count)))
        return await asyncio.gather(*texts)

    with server() as running:
        alone = asyncio.run(burst(running.url, 0, 0))
        for first in range(0, closes, 20):
            count = min(20, closes - first)
            texts = asyncio.run(burst(running.url, first, count))
            record.must(texts == alone, "a batch-mate has another text")
            # No other request is running, so the engine becomes idle when it has freed the blocks of this request.
            asyncio.run(leave(running.url, first // 20, random.Random(first), rows=16))
            began = time.monotonic()
            while not facts.is_idle(running.url) and time.monotonic() - began < 10:
                time.sleep(0.01)
            record.most("blocks free after", time.monotonic() - began, 1.0, "s")
            record.runs += count + 1
    return record
