"""Pools of threads for work on texts, one per kind of work, so that much work of one kind does not delay other kinds.

Each pool limits how many requests may wait for its threads, and refuses more immediately. A wait ends when a time limit
of the request passes or its client disconnects.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from server.errors import Overloaded
from server.ipc.client.call import Call
from server.ipc.wire.time_limits import TimeLimits
from server.limits.refusals import pool_limit
from server.operations.waiting import Waiting

TOKENIZER_THREADS = 2
MAX_RETRY_SECONDS = 60
MAX_RECORDINGS = 16
"""Default value of the setting `--max-recordings`."""
TURN_SECONDS = 0.001
"""Time for which a thread runs pieces of one request. A turn for each piece would cost more than many pieces do."""
_MEAN_WEIGHT = 0.1
"""Weight of the latest duration in the running mean of a pool's durations."""

Result = TypeVar("Result")


class Pool:
    """Runs work in threads, in order of arrival.

    name: kind of work as a verb phrase, for names of threads and for errors.
    threads: number of threads.
    max_waiting: maximum number of requests that wait for a thread.
    is_timed: whether time limits of a request end its wait. False for rendering of complete answers.
    """

    def __init__(self, name: str, threads: int, max_waiting: int, is_timed: bool = True) -> None:
        self.name = name
        self.threads = threads
        self.max_waiting = max_waiting
        self.is_timed = is_timed
        self.limit = pool_limit(name)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._requests = 0
        self._mean_seconds = 0.0

    @property
    def requests(self) -> int:
        """Number of requests that run in the pool or wait for it."""
        return self._requests

    async def run(self, work: Callable[[], Result], call: Call | None = None) -> Result:
        """Run `work` in a thread, and return its result.

        call: the request, whose time limits and disconnect end the wait; None for no limits.

        Raises:
            Overloaded: too many requests wait already.
            DeadlineExceeded, EngineFailure: a time limit of the call has passed.
            ClientGone: the client has disconnected.
        """
        (result,) = await self.run_pieces([work], call)
        return result

    async def run_pieces(self, pieces: Sequence[Callable[[], Result]], call: Call | None = None) -> list[Result]:
        """Run pieces of work of one request, one after another, and return their results.

        Work of other requests may run after each `TURN_SECONDS`, between two pieces. After an error, the remaining
        pieces do not run.

        call: the request, whose time limits and disconnect end the wait; None for no limits. Raises the errors of
            `run`.
        """
        self._enter()
        future: Future[list[Result]] | None = None
        started = time.monotonic()
        try:
            results: list[Result] = []
            limits = call.limits if call is not None and self.is_timed else TimeLimits()
            while len(results) < len(pieces):
                future = self._executor.submit(_run_some, pieces, len(results))
                waiting = Waiting(asyncio.wrap_future(future), call, limits, f"a thread was needed to {self.name}")
                results += await waiting.result()
            return results
        finally:
            if future is None:
                self._leave(started)
            else:
                future.cancel()
                # A piece that is running cannot be stopped, and is counted until it has ended.
                future.add_done_callback(lambda _: self._leave(started))

    async def iterate(self, items: Iterator[Result]) -> AsyncGenerator[Result, None]:
        """Yield the items of an iterator. Each item is computed in a thread when the caller asks for it.

        Counts as one request until the generator ends or is closed. Raises Overloaded before the first item.
        """
        self._enter()
        started = time.monotonic()
        try:
            while found := await asyncio.wrap_future(self._executor.submit(lambda: [*islice(items, 1)])):
                yield found[0]
        finally:
            self._leave(started)

    def close(self) -> None:
        """Stop the threads as soon as their current work ends."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _enter(self) -> None:
        with self._lock:
            if self._requests >= self.threads + self.max_waiting:
                raise Overloaded(
                    f"too many requests wait for a thread to {self.name}",
                    self.limit.refusal(f"{self.max_waiting:,}"),
                    self._seconds_until_room(),
                )
            self._requests += 1

    def _leave(self, started: float) -> None:
        with self._lock:
            self._requests -= 1
            self._mean_seconds += _MEAN_WEIGHT * (time.monotonic() - started - self._mean_seconds)

    def _seconds_until_room(self) -> int:
        """Estimated seconds until the pool has room: half of the mean time that a request spends in it, 1 to 60 s."""
        return min(max(math.ceil(self._mean_seconds / 2), 1), MAX_RETRY_SECONDS)


def _run_some(pieces: Sequence[Callable[[], Result]], start: int) -> list[Result]:
    """Run the piece with index `start` and the next ones, until `TURN_SECONDS` have passed. Returns their results."""
    end = time.monotonic() + TURN_SECONDS
    results = [pieces[start]()]
    while start + len(results) < len(pieces) and time.monotonic() < end:
        results.append(pieces[start + len(results)]())
    return results


class Pools:
    """The pools of the server. docs/operations.md has a table of their limits.

    max_recordings: maximum number of recordings in memory, all of which may wait in the pool `audio`.

    tokenize: converts texts to token ids and back, and does other work on texts of requests.
    tokenize_large: tokenizes single long texts. One thread, so that only one long text at a time needs memory.
    template: renders chat templates. One thread, because one process renders all of them.
    grammar: compiles the formats of answers.
    document: reads and writes documents. One thread, so that only one document at a time needs temporary memory.
    audio: decodes and resamples recordings. One thread, so that only one recording at a time needs temporary memory.
    detect: detects languages. One thread, because one process detects all of them.
    keep: changes and lists glossaries, builds stored sets of sequences, and writes files. One thread, so that one
        change is made at a time.
    parse: parses and validates large request bodies.
    render: renders large answers.
    """

    def __init__(self, max_recordings: int = MAX_RECORDINGS) -> None:
        self.tokenize = Pool("tokenize", TOKENIZER_THREADS, 512)
        self.tokenize_large = Pool("tokenize a long text", 1, 64)
        self.template = Pool("render a chat template", 1, 64)
        self.grammar = Pool("compile a format", 2, 64)
        self.document = Pool("read a document", 1, 32)
        self.audio = Pool("read audio", 1, max_recordings)
        self.detect = Pool("detect languages", 1, 64)
        self.keep = Pool("keep stored values", 1, 64)
        self.parse = Pool("parse a body", 1, 128)
        self.render = Pool("render an answer", 2, 128, is_timed=False)

    def __iter__(self) -> Iterator[Pool]:
        yield from vars(self).values()

    def close(self) -> None:
        """Stop the threads of all pools."""
        for pool in self:
            pool.close()
