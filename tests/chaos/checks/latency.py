"""Check promises 8 and 27: running streams keep their pace beside long prompts, embeddings and new grammars.

The gaps (times between two tokens of a stream) of all runs are evaluated together. The p99 gap of a single run would be
its second longest step, which any other work on the machine could delay.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable

from server.system.cores import give_way
from tests.chaos.checks.clients import p99
from tests.chaos.connection import Connection, ask
from tests.chaos.gaps import measure
from tests.chaos.record import Record
from tests.chaos.server import server

STREAM = {"prompt": "Once upon a time", "ignore_eos": True, "stream": True, "temperature": 1.0}
ALONE_SECONDS = 5.0
"""Time for which streams run alone, for a comparison with work of many seconds."""
BUSY = "import time\nwhile time.process_time() < 0.2: pass"

Work = Callable[[], Awaitable[None]]
Body = dict[str, object]


async def gaps_beside(url: str, work: Work, streams: int, tokens: int, before: int) -> list[float]:
    """Run streams, and start other work after some of their tokens. Returns the gaps after this moment, in seconds.

    A stream that ends before the work is replaced by a new one, so that gaps are measured until the work ends.

    tokens: number of tokens of each stream. before: number of tokens after which the work starts.
    """
    gaps: list[float] = []
    may_start, is_done = asyncio.Event(), asyncio.Event()

    async def read(i: int) -> None:
        last, count = 0.0, 0
        async with Connection(url) as connection:
            await connection.send("POST", "/generate", STREAM | {"max_new_tokens": tokens, "seed": i})
            async for event in connection.events(await connection.head()):
                count += 1
                if count == before:
                    may_start.set()
                if may_start.is_set() and event.name == "token" and count > 1:
                    gaps.append(event.at - last)
                last = event.at

    async def read_until_done(i: int) -> None:
        await read(i)
        while not is_done.is_set():
            await read(i)

    async def work_beside() -> None:
        await may_start.wait()
        await work()
        is_done.set()

    await asyncio.gather(work_beside(), *map(read_until_done, range(streams)))
    return gaps


async def no_work() -> None:
    """Do nothing, so that the streams run alone, and none of them is replaced."""


async def wait_beside() -> None:
    """Do nothing for some seconds, so that streams that end are replaced, as beside longer work."""
    await asyncio.sleep(ALONE_SECONDS)


def _requests(url: str, *requests: tuple[str, Body]) -> Work:
    """Return work that sends requests one after the other. requests: path and body of each."""

    async def send() -> None:
        for path, body in requests:
            answer = await ask(url, "POST", path, body)
            assert answer.status in (200, 422), f"{path}: status {answer.status}"

    return send


async def _busy_process() -> None:
    """Run a process that only uses processor time, with the priority of the process that compiles grammars."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", BUSY)
    give_way(process.pid)
    await process.wait()


def _schema(run: int, fields: int) -> Body:
    """A JSON schema with `fields` fields that differs from those of all other runs. run: index of the run."""
    kinds = [{"type": "string", "maxLength": 20}, {"type": "integer"}, {"type": "array", "items": {"type": "number"}}]
    names = {f"field_{run}_{i}": kinds[i % 3] for i in range(fields)}
    return {"type": "json_schema", "schema": {"type": "object", "properties": names, "required": list(names)}}


def long_prompts(runs: int, streams: int = 16) -> Record:
    """Promise 8: a long prompt and an embedding of 512 texts hardly change the gaps of running streams.

    A second measurement adds a request with a new JSON schema, which must be compiled.
    """
    record = Record("burst")
    gaps: dict[str, list[float]] = defaultdict(list)
    prompt = "The old fox went to the river and saw a boat. " * 40
    burst: list[tuple[str, Body]] = [
        ("/v1/completions", {"model": "story", "prompt": prompt[:1500], "max_tokens": 8}),
        ("/embed", {"inputs": [f"The dog chased the cat {i}." for i in range(512)]}),
    ]
    with server() as running:
        asyncio.run(gaps_beside(running.url, _requests(running.url, *burst), streams, 400, 200))
        for run in range(runs):
            grammar = ("/generate", {"prompt": "A", "max_new_tokens": 4, "response_format": _schema(run, 60)})
            for name, work in (
                ("alone", no_work),
                ("p99 gap", _requests(running.url, *burst)),
                ("p99 gap with a new schema", _requests(running.url, *burst, grammar)),
            ):
                gaps[name] += asyncio.run(gaps_beside(running.url, work, streams, 400, 200))
            record.runs += 1
    alone = p99(gaps.pop("alone"))
    for name, found in gaps.items():
        record.most(name, p99(found) / alone, 3.0, "times alone")
    record.most("p99 gap in the worker, in processor time", measure(runs).ratio, 3.0, "times alone")
    return record


def grammars(runs: int, streams: int = 16, fields: int = 60) -> Record:
    """Promise 27: a request with a large JSON schema hardly changes the gaps of running streams.

    It is the first schema that the server gets. For comparison, the effect of other work is recorded too: the same
    request without a schema, and a busy process.
    """
    record = Record("grammar")
    # Tokens of a stream, and tokens before the other work: the answer with a schema begins long before the streams end.
    lengths = 480, 60
    gaps: dict[str, list[float]] = defaultdict(list)
    for run in range(runs):
        with server() as running:
            plain: Body = {"prompt": "A", "max_new_tokens": 8}
            formatted = plain | {"response_format": _schema(run, fields)}
            cases: list[tuple[str, Work]] = [
                ("alone", no_work),
                ("the same request without a schema", _requests(running.url, ("/generate", plain))),
                ("a schema", _requests(running.url, ("/generate", formatted))),
                ("a busy process of the same priority", _busy_process),
            ]
            asyncio.run(gaps_beside(running.url, no_work, streams, *lengths))
            # In turns, because a young server gets faster.
            for name, work in cases[run % 4 :] + cases[: run % 4]:
                gaps[name] += asyncio.run(gaps_beside(running.url, work, streams, *lengths))
            record.runs += 1
    alone = p99(gaps.pop("alone"))
    record.most("p99 gap", p99(gaps.pop("a schema")) / alone, 1.5, "times alone")
    for name, found in gaps.items():
        record.details[f"p99 gap beside {name}"] = f"{p99(found) / alone:.2f} times alone"
    return record
