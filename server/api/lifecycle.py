"""Start and stop the models and workers behind the HTTP application, as an ASGI lifespan.

Any ASGI server that sends lifespan events can run the application. Models load in the background, so that the server
answers health probes from the beginning. `server.api.serve` adds sockets and signals for `triptych serve`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from server.api.state import State
from server.errors import CheckpointError, StartError
from server.ipc.workers.worker_pool import WorkerPool

log = logging.getLogger("triptych.lifecycle")

FLUSH_SECONDS = 1.0
"""Time for streams to send their `error` event, after the grace time for running requests has passed."""


class Lifecycle:
    """Loads the models when the application starts, and drains and stops everything at its end.

    state: state of the application. This class sets its fields `started` and `draining`.
    pool: starts and stops the worker processes.
    load_texts: coroutine function that loads the tokenizers. It runs while the workers load the weights.
    preload: coroutine function that loads models on demand, when the workers are ready.
    """

    def __init__(
        self,
        state: State,
        pool: WorkerPool,
        load_texts: Callable[[], Awaitable[None]],
        preload: Callable[[], Awaitable[None]],
    ) -> None:
        self.pool = pool
        self._state = state
        self._load_texts = load_texts
        self._preload = preload
        self._begun = asyncio.Event()
        self._loading: asyncio.Task[None] | None = None

    @property
    def failed(self) -> bool:
        """Whether the server needs a restart: loading has failed, or the worker pool has given up."""
        loading = self._loading
        load_failed = loading is not None and loading.done() and not self._state.started
        return load_failed or self.pool.failure is not None

    def begin(self) -> None:
        """Start loading the models in the background. Later calls do nothing. Needs a running event loop."""
        if self._loading is None:
            self._loading = asyncio.create_task(self._load(), name="loading")
            self._begun.set()

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Context manager around the running application: calls `begin` at the start, and drains and stops at exit."""
        self.begin()
        try:
            yield
        finally:
            await self.drain()
            await self._stop()

    @contextlib.asynccontextmanager
    async def unattended_lifespan(self) -> AsyncIterator[None]:
        """The lifespan under an ASGI server that `server.api.serve` does not run. Logs the reason if loading fails."""
        log.info("running under another ASGI server: no direct writes, so events use ASGI")
        async with self.lifespan():
            reporting = asyncio.create_task(self._report_failure(), name="report failure")
            try:
                yield
            finally:
                reporting.cancel()

    async def wait_loaded(self) -> None:
        """Wait until everything is loaded. Raises StartError, or CheckpointError for a bad checkpoint."""
        await self._begun.wait()
        assert self._loading is not None
        await asyncio.shield(self._loading)

    async def wait_failed(self) -> None:
        """Wait until the worker pool gives up on restarting workers, then raise StartError."""
        raise StartError(await self.pool.wait_failed())

    def restart_workers(self) -> None:
        """Restart all workers, one after another, so that no request is interrupted.

        While the server starts or stops, only a warning is logged.
        """
        if self._state.started and not self._state.draining:
            self.pool.restart()
        else:
            log.warning("the workers are not restarted while the server starts or stops")

    async def drain(self) -> None:
        """Refuse new requests and wait until the running ones have ended.

        After the grace time, running requests fail with `not_ready`. A second call returns immediately.
        """
        state = self._state
        if state.draining:
            return
        state.draining = True
        state.live.stop()
        if state.answering:
            log.info("waiting up to %g s for %d running requests", state.settings.grace_seconds, state.answering)
        if not await self._wait_idle(state.settings.grace_seconds):
            state.runtime.client.fail_all("not_ready", "the server is shutting down")
            await self._wait_idle(FLUSH_SECONDS)

    async def _load(self) -> None:
        """Load the tokenizers while the workers start and load the weights, then load models on demand.

        Raises StartError or CheckpointError.
        """
        workers = asyncio.create_task(self.pool.start(), name="workers")
        try:
            await self._load_texts()
            await workers
            await self._preload()
        finally:
            workers.cancel()
            await asyncio.gather(workers, return_exceptions=True)
        self._check_templates()
        # Objects that live as long as the process would slow down every garbage collection.
        gc.collect()
        gc.freeze()
        self._state.started = True

    def _check_templates(self) -> None:
        """Raise CheckpointError for a model whose chat template would lose text of a chat.

        Called after loading, because the tasks of a model are not known before.
        """
        for model in self._state.runtime.loaded():
            if model.chat_problem is not None:
                raise CheckpointError(model.chat_problem)

    async def _report_failure(self) -> None:
        try:
            await self.wait_loaded()
            await self.wait_failed()
        except StartError as error:
            log.error("cannot serve: %s", error)
        except Exception:
            log.exception("cannot serve: a fault while loading")

    async def _stop(self) -> None:
        """Stop loading, and all that the server has started: workers, threads, template and grammar processes."""
        assert self._loading is not None
        self._loading.cancel()
        await asyncio.gather(self._loading, return_exceptions=True)
        if self._state.runtime.registry is not None:
            await self._state.runtime.registry.stop()
        await self.pool.stop()
        self._state.runtime.close()

    async def _wait_idle(self, seconds: float) -> bool:
        """Wait until no request is in progress, for `seconds` at most. Returns whether none is in progress."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self._state.answering and loop.time() < end:
            await asyncio.sleep(0.02)
        return not self._state.answering
