"""Promises 8 and 27: long prompts and grammars beside streams."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tests.chaos.checks.clients import p99
from tests.chaos.connection import Connection, ask
from tests.chaos.gaps import measure
from tests.chaos.record import Record
from tests.chaos.server import server

STREAM = {"prompt": "Once upon a time", "ignore_eos": True, "stream": True, "temperature": 1.0}


@dataclass
class Gaps:
    """Gaps between the events of streams: before something happened beside them, and after it began."""

    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return p99(self.after) / p99(self.before)


async def _stream_beside(url: str, streams: int, tokens: int, beside: list[tuple[str, dict[str, object]]]) -> Gaps:
    """Run streams; at half of their tokens, send other requests one after the other."""
    gaps, begun = Gaps(), asyncio.Event()
    half = tokens // 2

    async def one(i: int) -> None:
        last, count = 0.0, 0
        async with Connection(url) as connection:
            await connection.send("POST", "/generate", STREAM | {"max_new_tokens": tokens, "seed": i})
            async for event in connection.events(await connection.head()):
                count += 1
                if count == half:
                    begun.set()
                if last and event.name == "token":
                    (gaps.after if begun.is_set() else gaps.before).append(event.at - last)
                last = event.at

    async def disturb() -> None:
        await begun.wait()
        for path, body in beside:
            answer = await ask(url, "POST", path, body)
            assert answer.status in (200, 422), f"{path}: status {answer.status}"

    await asyncio.gather(disturb(), *map(one, range(streams)))
    return gaps


def _schema(run: int, fields: int) -> dict[str, object]:
    """A schema that no earlier request had."""
    kinds = [{"type": "string", "maxLength": 20}, {"type": "integer"}, {"type": "array", "items": {"type": "number"}}]
    names = {f"field_{run}_{i}": kinds[i % 3] for i in range(fields)}
    return {"type": "json_schema", "schema": {"type": "object", "properties": names, "required": list(names)}}


def long_prompts(runs: int, streams: int = 16) -> Record:
    """Promise 8: a maximal prompt, then a 512-text embedding, beside streams; then both with a new schema."""
    record = Record("burst")
    prompt = "The old fox went to the river and saw a boat. " * 40
    burst: list[tuple[str, dict[str, object]]] = [
        ("/v1/completions", {"model": "story", "prompt": prompt[:1500], "max_tokens": 8}),
        ("/embed", {"inputs": [f"The dog chased the cat {i}." for i in range(512)]}),
    ]
    with server() as running:
        asyncio.run(_stream_beside(running.url, streams, 60, burst))
        for run in range(runs):
            gaps = asyncio.run(_stream_beside(running.url, streams, 400, burst))
            record.most("p99 gap", gaps.ratio, 3.0, "times alone")
            grammar = ("/generate", {"prompt": "A", "max_new_tokens": 4, "response_format": _schema(run, 60)})
            gaps = asyncio.run(_stream_beside(running.url, streams, 400, [*burst, grammar]))
            record.most("p99 gap with a new schema", gaps.ratio, 3.0, "times alone")
            record.runs += 1
    record.most("p99 gap in the worker, in processor time", measure(runs).ratio, 3.0, "times alone")
    return record


def grammars(runs: int, streams: int = 16, fields: int = 60) -> Record:
    """Promise 27: a new schema of many fields beside streams."""
    record = Record("grammar")

    with server() as running:
        asyncio.run(_stream_beside(running.url, streams, 60, []))
        for run in range(runs):
            body: dict[str, object] = {
                "response_format": _schema(1000 + run, fields),
                "prompt": "A",
                "max_new_tokens": 4,
            }
            gaps = asyncio.run(_stream_beside(running.url, streams, 300, [("/generate", body)]))
            record.most("p99 gap", gaps.ratio, 1.5, "times alone")
            record.runs += 1
    return record
