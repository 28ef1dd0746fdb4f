"""Let other threads run between short calls of a library that releases Python's global lock in each call.

A thread that waits for the lock demands it after `sys.getswitchinterval()`. Each release wakes it before that. If the
lock is then taken again already, its wait begins anew. So a thread that makes such calls one after another keeps the
lock: with `sentencepiece`, the event loop waited 25 ms to make three system calls, and 260 ms at worst.
"""

from __future__ import annotations

import asyncio
import threading
import time

INTERVAL_SECONDS = 0.001
PAUSE_SECONDS = 0.00005


class _Pauses(threading.local):
    """The time of this thread's latest pause; 0 before the first one."""

    latest = 0.0


_pauses = _Pauses()


def pause() -> None:
    """Sleep for a moment if this thread has not slept for `INTERVAL_SECONDS`. Call it before each call of the library.

    Does nothing in the thread of an event loop.
    """
    now = time.monotonic()
    if now - _pauses.latest < INTERVAL_SECONDS:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        time.sleep(PAUSE_SECONDS)
        now = time.monotonic()
    _pauses.latest = now
