"""Ctrl-C in commands that wait for a server."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def interruptible(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Await `work`, and cancel it when the user presses Ctrl-C. Raises KeyboardInterrupt then.

    `asyncio.run` alone can miss the key until the next event: a signal that arrives between Python's check for signals
    and the system call that waits does not interrupt the call. The loop's own handlers wake the loop.
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
