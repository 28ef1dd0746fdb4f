"""Background work while the application runs: key file, garbage collection, old responses and documents, traces."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from server.api.state import State
from server.api_keys import KeyFileWatcher
from server.system.garbage import collect_when_cheap

TIDY_SECONDS = 5.0
"""Time between two searches for stored responses and documents whose time is over."""


@contextlib.asynccontextmanager
async def with_background(
    state: State, lifespan: Callable[[], AbstractAsyncContextManager[None]]
) -> AsyncIterator[None]:
    """The lifespan of the application, during which the background work runs."""
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
    """Drop stored responses and documents whose time is over, also while no request uses the stores."""
    while True:
        await asyncio.sleep(TIDY_SECONDS)
        while state.responses.tidy():
            await asyncio.sleep(0)
        state.documents.tidy()
