"""Promise 24: mixed requests for hours, 5% of them aborted, without growth of memory, descriptors or tasks.

Run `python -m tests.chaos.soak` (`make soak`). Every round is written to a state file; a later run with the same file
continues the count. Growth is the slope of a straight line through the memory of one server process after each round.
The first rounds are left out, because their requests fill caches of limited size.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tests.chaos import facts, mix
from tests.chaos.connection import Connection
from tests.chaos.openapi import MODELS
from tests.chaos.server import server
from tests.waiting import eventually

ABORTED_SHARE = 0.05
MAX_BYTES_PER_REQUEST = 100.0
WARM_UP_REQUESTS = 8000
"""Number of requests of each server process that are not evaluated, because its memory still grows to its usual size.
"""
CACHED_WORDS = 12_000
"""Number of words that fill the word cache of a BPE tokenizer, which has room for 10,000 (280 bytes each)."""
FILLING_ROUNDS = 8
"""Number of times that each text is sent to fill the caches of two threads.

After 8 times, only one text in 128 has always been given to the same thread."""
CLIENTS = 16


@dataclass
class Round:
    """Memory, open file descriptors and threads of an idle server after a round of requests.

    life: index of the server process. requests: number of requests sent to this process so far.
    """

    life: int
    requests: int
    http_bytes: int
    worker_bytes: int
    http_descriptors: int
    worker_descriptors: int
    http_threads: int


async def _client(url: str, numbers: Iterator[int], rng: random.Random) -> None:
    """Send the requests with the indices in `numbers`, which several clients share.

    One request in twenty is aborted before its answer or after a random part of it.
    """
    connection = Connection(url)
    try:
        for number in numbers:
            request = mix.request(number)
            if rng.random() >= ABORTED_SHARE:
                answer = await connection.request("POST", request.path, request.body)
                assert answer.status in (200, 404, 422), f"{request.path}: status {answer.status} {answer.body[:200]!r}"
                continue
            await connection.send("POST", request.path, request.body | {"max_new_tokens": 60})
            if rng.random() < 0.5:
                answer = await connection.head()
                async for _ in connection.chunks(answer):
                    break
            elif rng.random() < 0.5:
                await asyncio.sleep(rng.random() * 0.02)
            connection.close()
    finally:
        connection.close()


async def fill_word_caches(url: str) -> None:
    """Fill the tokenizers' word caches: tokenize many different words with each model.

    The mix would fill them slowly, which would look like a memory leak. Each thread has its own cache (tokenizers 0.23)
    and takes any of the texts that wait.
    """

    async def tokenize(model: str, first: int) -> None:
        text = " ".join(_word(number) for number in range(first, first + 2000))
        async with Connection(url) as connection:
            answer = await connection.request("POST", "/tokenize", {"model": model, "inputs": text})
        assert answer.status == 200, f"status {answer.status} {answer.body[:200]!r}"

    for _ in range(FILLING_ROUNDS):
        await asyncio.gather(*(tokenize(model, first) for model in MODELS for first in range(0, CACHED_WORDS, 2000)))


def _word(number: int) -> str:
    """A word that differs for each number. It has only letters, because tokenizers split words at digits."""
    return "q" + "".join(chr(ord("a") + number // 26**place % 26) for place in range(4))


async def send(url: str, first: int, count: int, clients: int = CLIENTS) -> None:
    """Send `count` requests of the mix, starting with the index `first`."""
    numbers = iter(range(first, first + count))
    await asyncio.gather(*(_client(url, numbers, random.Random(first + i)) for i in range(clients)))


def measure(url: str, pid: int, life: int, requests: int) -> Round:
    """Wait until the server is idle, then read its memory, open file descriptors and number of threads."""
    eventually(lambda: facts.is_idle(url))
    process = psutil.Process(pid)
    (worker,) = (child for child in process.children() if "--fd" in child.cmdline())
    return Round(
        life,
        requests,
        facts.memory_bytes(process),
        facts.memory_bytes(worker),
        facts.descriptors(process),
        facts.descriptors(worker),
        process.num_threads(),
    )


def growth(rounds: list[Round], name: str, warm_up: int = WARM_UP_REQUESTS) -> float | None:
    """Growth per request of the last server process; None with too few rounds.

    name: field of `Round` whose growth is computed, such as `worker_bytes`. warm_up: number of requests to leave out.
    """
    last = [done for done in rounds if done.life == rounds[-1].life and done.requests >= warm_up] if rounds else []
    if len(last) < 3:
        return None
    slope, _ = statistics.linear_regression([done.requests for done in last], [getattr(done, name) for done in last])
    return slope


def soak(count: int, every: int, path: Path | None = None) -> list[Round]:
    """Send requests until `count` were sent, those in the state file included. Returns all rounds.

    every: number of requests in a round. path: state file, read if it exists and written after each round.
    """
    state = json.loads(path.read_text()) if path is not None and path.exists() else {"sent": 0, "rounds": []}
    rounds = [Round(**fields) for fields in state["rounds"]]
    sent, life = state["sent"], max((done.life for done in rounds), default=0) + 1
    with server() as running:
        begun = sent
        asyncio.run(fill_word_caches(running.url))
        while sent < count:
            asyncio.run(send(running.url, sent, every))
            sent += every
            rounds.append(measure(running.url, running.process.pid, life, sent - begun))
            _report(rounds, sent, count)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps({"sent": sent, "rounds": [asdict(done) for done in rounds]}))
    return rounds


def _report(rounds: list[Round], sent: int, count: int) -> None:
    one = rounds[-1]
    slope = growth(rounds, "http_bytes")
    print(
        f"{sent:,} of {count:,}: http {one.http_bytes / 2**20:.2f} MiB, worker {one.worker_bytes / 2**20:.2f} MiB, "
        f"descriptors {one.http_descriptors}+{one.worker_descriptors}, "
        f"{'warming up' if slope is None else f'{slope:.1f} bytes per request'}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=2000, help="requests per round")
    parser.add_argument("--state", type=Path, default=Path("build/soak.json"), help="file to go on from")
    arguments = parser.parse_args()
    rounds = soak(arguments.requests, arguments.every, arguments.state)
    slope = growth(rounds, "http_bytes")
    return int(slope is None or slope > MAX_BYTES_PER_REQUEST)


if __name__ == "__main__":
    sys.exit(main())
