"""Background work while the application runs: the key file, garbage collection, expired responses and documents.

When the application stops, the document jobs and the tracing are stopped too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from server.api.state import State
from server.api_keys import KeyFileWatcher
from server.system.garbage import collect_when_cheap

TIDY_SECONDS = 5.0
"""Time between two searches for expired stored responses and documents."""


@contextlib.asynccontextmanager
async def with_background(
    state: State, lifespan: Callable[[], AbstractAsyncContextManager[None]]
) -> AsyncIterator[None]:
    """Context manager for the application's lifespan: runs the background work, and `lifespan` inside of it."""
    state.page_check.look_up_full_name()
    tasks = [
        asyncio.create_task(_watch_keys(state), name="key file"),
        asyncio.create_task(collect_when_cheap(), name="garbage collection"),
        asyncio.create_task(_tidy_stores(state), name="stored responses and documents"),
    ]
    try:
        async with lifespan():
            yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await state.documents.close()
        if state.tracing is not None:
            await asyncio.to_thread(state.tracing.stop)


async def _watch_keys(state: State) -> None:
    path = state.settings.api_key_file
    if path is None:
        return

    await KeyFileWatcher(path, state.settings.keys, state.keys).run(state.use_keys)


async def _tidy_stores(state: State) -> None:
    """Drop expired responses and documents every `TIDY_SECONDS`, because the stores may receive no request for long."""
    while True:
        await asyncio.sleep(TIDY_SECONDS)
        while state.responses.tidy():
            await asyncio.sleep(0)
        state.documents.tidy()
