"""Slows the reading of weights while the worker runs steps, so that the gaps between tokens stay short."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

RESTS = 2.0
"""Time that a thread sleeps after reading a part of a file, relative to the processor time of the reading."""


class ReadingPace:
    """Gives turns to threads that read a file. While steps run, one thread reads at a time, and rests after each turn.

    Steps and reading share the cores and the memory bandwidth. A low priority of the reading threads is not enough: a
    step that begins while they have the cores waits for the end of a time slice or of a system call.
    `are_steps_running` is set by the thread that runs the steps.
    """

    def __init__(self) -> None:
        self.are_steps_running = False
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Context manager around one system call that reads."""
        if not self.are_steps_running:
            yield
            return
        with self._turn:
            began = time.thread_time()
            yield
            time.sleep(RESTS * (time.thread_time() - began))
