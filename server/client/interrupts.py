"""Handle Ctrl-C in commands that wait for a server."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def interruptible(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Await `work`, and return its result. Ctrl-C cancels it and raises KeyboardInterrupt.

    With `asyncio.run` alone, Ctrl-C can have no effect until the next event: a signal that arrives just before the
    event loop's system call does not interrupt this call. A signal handler of the loop wakes it.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        task.cancel()

    # Windows has no such handlers; `asyncio.run` handles the key there.
    with contextlib.suppress(NotImplementedError):
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return await work
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        with contextlib.suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)
