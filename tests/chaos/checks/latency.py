"""Promises 7, 8, 16, 25 and 27: overload, long prompts, large texts and grammars beside streams."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

import psutil

from tests.chaos import facts
from tests.chaos.checks.clients import p99
from tests.chaos.connection import Answer, Closed, Connection, ask
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


def long_prompts(runs: int, streams: int = 16) -> Record:
    """Promise 8: a maximal prompt, then a 512-text embedding, beside streams."""
    record = Record("burst")
    prompt = "The old fox went to the river and saw a boat. " * 40
    beside: list[tuple[str, dict[str, object]]] = [
        ("/v1/completions", {"model": "story", "prompt": prompt[:1500], "max_tokens": 8}),
        ("/embed", {"inputs": [f"The dog chased the cat {i}." for i in range(512)]}),
    ]
    with server() as running:
        asyncio.run(_stream_beside(running.url, streams, 60, beside))
        for _ in range(runs):
            gaps = asyncio.run(_stream_beside(running.url, streams, 400, beside))
            record.most("p99 gap", gaps.ratio, 3.0, "times alone")
            record.runs += 1
    record.most("p99 gap in the worker, in processor time", measure(runs).ratio, 3.0, "times alone")
    return record


def grammars(runs: int, streams: int = 16, fields: int = 60) -> Record:
    """Promise 27: a new schema of many fields beside streams."""
    record = Record("grammar")

    def schema(run: int) -> dict[str, object]:
        kinds = [
            {"type": "string", "maxLength": 20},
            {"type": "integer"},
            {"type": "array", "items": {"type": "number"}},
        ]
        names = {f"field_{run}_{i}": kinds[i % 3] for i in range(fields)}
        return {"type": "object", "properties": names, "required": list(names)}

    with server() as running:
        asyncio.run(_stream_beside(running.url, streams, 60, []))
        for run in range(runs):
            body = {
                "response_format": {"type": "json_schema", "schema": schema(run)},
                "prompt": "A",
                "max_new_tokens": 4,
            }
            gaps = asyncio.run(_stream_beside(running.url, streams, 300, [("/generate", body)]))
            record.most("p99 gap", gaps.ratio, 1.5, "times alone")
            record.runs += 1
    return record


async def lag(url: str, done: asyncio.Event) -> list[float]:
    """Time of `/health` on one open connection, again and again until `done`: the lag of the event loop."""
    found = []
    async with Connection(url) as connection:
        while not done.is_set():
            began = time.monotonic()
            await connection.request("GET", "/health")
            found.append(time.monotonic() - began)
            await asyncio.sleep(0.002)
    return found


async def beside_lag(url: str, bodies: list[tuple[str, bytes]]) -> tuple[list[float], list[Answer]]:
    """Send bodies together and measure the lag until all are answered."""
    done = asyncio.Event()
    measuring = asyncio.create_task(lag(url, done))

    async def send(path: str, body: bytes) -> Answer:
        try:
            return await ask(url, "POST", path, body)
        except Closed:
            return Answer(0, {})

    try:
        answers = await asyncio.gather(*(send(path, body) for path, body in bodies))
    finally:
        done.set()
    return await measuring, answers


def large_texts(rounds: int, together: int = 16) -> Record:
    """Promise 16: the worst texts at the byte limit, sixteen at once; `/health` meanwhile."""
    record = Record("request")
    size = 390_000
    texts = [
        "a" * size,
        " " * size,
        "a b" * (size // 3),
        "!?" * (size // 2),
        "é" * (size // 2),
        "日本" * (size // 6),
        "👍🏽" * (size // 8),
    ]
    with server() as running:
        for number in range(rounds):
            text = texts[number % len(texts)]
            body = {"model": ("story", "sentence-encoder")[number // len(texts) % 2], "inputs": text}
            sent = [("/tokenize", json.dumps(body).encode())] * together
            lags, answers = asyncio.run(beside_lag(running.url, sent))
            record.runs += together
            for answer in answers:
                record.must(answer.status in (200, 413, 422, 429), f"status {answer.status}")
            record.most("worst /health", max(lags) * 1000, 50, "ms")
    return record


def dear_requests(together: int = 16) -> Record:
    """Promise 25, as far as a list goes: the dearest known bodies, alone and together, beside `/health`."""
    record = Record("request")
    words, texts = " ".join(["fox"] * 60_000), ["the dog"] * 1000
    bodies: list[tuple[str, dict[str, object]]] = [
        ("/similarity", {"inputs": {"source_sentence": words, "sentences": texts}}),
        (
            "/v1/completions",
            {"model": "story", "prompt": ["a " * 200] * 64, "echo": True, "logprobs": 5, "max_tokens": 1},
        ),
        ("/generate", {"prompt": ["a " * 200] * 64, "prompt_logprobs": True, "top_logprobs": 20, "max_new_tokens": 1}),
        ("/embed", {"inputs": ["a " * 500] * 1024}),
        ("/embed_all", {"inputs": ["a " * 500] * 512}),
    ]
    with server() as running:
        process = psutil.Process(running.process.pid)
        for path, body in bodies:
            for count in (1, together):
                lags, answers = asyncio.run(beside_lag(running.url, [(path, json.dumps(body).encode())] * count))
                record.runs += count
                for answer in answers:
                    record.must(answer.status in (200, 404, 413, 422, 429), f"{path}: status {answer.status}")
                record.most("worst /health", max(lags) * 1000, 50, "ms")
                record.most("memory of the HTTP process", facts.memory_bytes(process) / 2**20, 1000, "MB")
    return record
