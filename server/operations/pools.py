"""Threads for text work, one pool per kind of work, so that a burst of one kind does not delay the others.

A pool limits the work that waits for its threads. Waiting ends at the time limits of the request and when its client
disconnects. A full pool refuses immediately.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
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
"""Default of `--max-recordings`."""
_MEAN_WEIGHT = 0.1
"""Weight of the latest duration in the running mean of a pool's durations."""

Result = TypeVar("Result")


class Pool:
    """Runs work in threads, in the order of its arrival.

    name: kind of work, for the names of threads and for errors.
    threads: number of threads.
    max_waiting: number of requests that may wait for a thread. One more is refused.
    is_timed: the time limits of a request end its work. False for work on answers that are complete.
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
        """Requests that run in the pool or wait for it."""
        return self._requests

    async def run(self, work: Callable[[], Result], call: Call | None = None) -> Result:
        """Run `work` in a thread and return its result.

        call: the request. Its time limits and its end apply to the work; None for work without either.

        Raises:
            Overloaded: the limit of waiting requests is reached.
            DeadlineExceeded, EngineFailure: a time limit of the call has passed.
            ClientGone: the client has disconnected.
        """
        (result,) = await self.run_pieces([work], call)
        return result

    async def run_pieces(self, pieces: Iterable[Callable[[], Result]], call: Call | None = None) -> list[Result]:
        """Run the pieces of one request, each as soon as a thread is free, and return their results.

        The work of other requests runs between the pieces. Raises the errors of `run`; pieces that have not begun by
        then do not run.
        """
        self._enter()
        future: Future[Result] | None = None
        started = time.monotonic()
        try:
            results = []
            for piece in pieces:
                future = self._executor.submit(piece)
                limits = call.limits if call is not None and self.is_timed else TimeLimits()
                waiting = Waiting(asyncio.wrap_future(future), call, limits, f"a thread was needed to {self.name}")
                results.append(await waiting.result())
            return results
        finally:
            if future is None:
                self._leave(started)
            else:
                future.cancel()
                # A piece that is running cannot be stopped, and is counted until it has ended.
                future.add_done_callback(lambda _: self._leave(started))

    async def iterate(self, items: Iterator[Result]) -> AsyncGenerator[Result, None]:
        """The items of an iterator, each computed in a thread when the caller asks for it.

        Counts as one request until the generator is closed. Raises Overloaded before the first item.
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
        """Seconds until half of the waiting requests have been served, by the mean time that a request spends here."""
        return min(max(math.ceil(self._mean_seconds / 2), 1), MAX_RETRY_SECONDS)


class Pools:
    """The pools of the server. Each has a limit of its own, which is in the table of docs/operations.md.

    max_recordings: maximum number of recordings in memory.

    tokenize: texts to token ids and back, and other work with the text of requests.
    tokenize_large: the same for single long texts. One thread, so that one long text at a time takes memory.
    template: chat templates. One thread, because one process renders all of them.
    grammar: compiles the formats of answers.
    document: reads and writes documents. One thread, so that one document at a time takes transient memory.
    audio: decodes and resamples recordings. One thread, so that one recording at a time takes transient memory. All
        recordings that may be in memory may wait for it.
    detect: detects languages. One thread, because one process detects all of them.
    keep: changes and lists glossaries, and writes files. One thread, so that one change at a time is made.
    parse: parses and validates large request bodies.
    render: builds large answers.
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
