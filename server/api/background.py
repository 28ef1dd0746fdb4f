"""Background work for as long as the application runs: reading the key file again, sending traces."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from server.api.state import State
from server.api_keys import ApiKeys, KeyFileWatcher


@contextlib.asynccontextmanager
async def with_background(
    state: State, lifespan: Callable[[], AbstractAsyncContextManager[None]]
) -> AsyncIterator[None]:
    """The lifespan of the application, during which the background work runs."""
    task = asyncio.create_task(_watch_keys(state), name="key file")
    try:
        async with lifespan():
            yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if state.tracing is not None:
            await asyncio.to_thread(state.tracing.stop)


async def _watch_keys(state: State) -> None:
    path = state.settings.api_key_file
    if path is None:
        return

    def use(keys: ApiKeys) -> None:
        state.keys = keys

    await KeyFileWatcher(path, state.settings.keys, state.keys).run(use)
