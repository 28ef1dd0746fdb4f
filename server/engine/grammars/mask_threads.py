"""Threads that compile grammars and compute masks. A slow grammar does not delay the masks of fast ones.

Threads for fast grammars compute most masks. Separate threads compile grammars, and compute masks of grammars that were
slow before. They have a low priority, so that the processor cores stay free for the steps.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from server.engine.sequences.grammar_state import GrammarState
from server.system.cores import give_way, usable_cores

log = logging.getLogger("triptych.engine")

SLOW_SECONDS = 0.01
"""A grammar counts as slow if its recorded processor time for a mask task exceeds this number of seconds."""
SLOW_DECAY = 0.9
"""Each mask task multiplies the recorded time of its grammar by this factor. A slow grammar can become fast again."""
NUM_SLOW_THREADS = 2

MaskRow = tuple[GrammarState, Sequence[int], Sequence[int], Sequence[int]]
"""A sequence: its grammar state, its tokens, its end tokens and its stop tokens."""


class MaskTask:
    """Computes the masks of the next token of one sequence group.

    rows: its sequences. Their grammar states must not be used until the task is done.
    num_tokens: length of each sequence.
    started: when a thread began the task, in seconds of `time.monotonic()`; None before.
    error: the exception that ended the task; None if the task has not failed.
    """

    def __init__(self, rows: Sequence[MaskRow]) -> None:
        self.rows = rows
        self.num_tokens = len(rows[0][1])
        self.started: float | None = None
        self.is_done = False
        self.error: Exception | None = None

    @property
    def is_slow(self) -> bool:
        """Whether a grammar of the group counts as slow. A grammar without a computed mask counts as slow too."""
        grammars = self.rows[0][0].grammars.values()
        return any(grammar.mask_seconds is None or grammar.mask_seconds > SLOW_SECONDS for grammar in grammars)


class MaskThreads:
    """Runs mask tasks in two sets of threads: for fast grammars, and for slow ones.

    compute: computes the masks of the rows of one group.
    """

    def __init__(self, compute: Callable[[Sequence[MaskRow]], None]) -> None:
        self._compute = compute
        self._num_fast = max(usable_cores() * 4 // 5, 1)
        self._fast = ThreadPoolExecutor(self._num_fast, thread_name_prefix="masks")
        self._slow = ThreadPoolExecutor(NUM_SLOW_THREADS, thread_name_prefix="slow-masks", initializer=_lower_priority)
        self._done = threading.Condition()

    def start(self, tasks: Sequence[MaskTask]) -> None:
        """Start tasks and return at once. Tasks with fast grammars are divided among the fast threads."""
        slow = [task for task in tasks if task.is_slow]
        fast = [task for task in tasks if task not in slow]
        for first in range(min(self._num_fast, len(fast))):
            self._fast.submit(self._run, fast[first :: self._num_fast])
        for task in slow:
            self._slow.submit(self._run, [task])

    def start_slowly(self, work: Callable[[], None]) -> None:
        """Run a function in a thread for slow grammars. An exception in it is only logged."""

        def run() -> None:
            try:
                work()
            except Exception:
                log.exception("compiling a grammar failed")
            with self._done:
                self._done.notify_all()

        self._slow.submit(run)

    def wait(self, tasks: Sequence[MaskTask], seconds: float) -> None:
        """Wait until all tasks are done, for `seconds` at most."""
        with self._done:
            self._done.wait_for(lambda: all(task.is_done for task in tasks), seconds)

    def wait_for_any(self, seconds: float) -> None:
        """Wait until any task or other work is done, for `seconds` at most."""
        with self._done:
            self._done.wait(seconds)

    def _run(self, tasks: Sequence[MaskTask]) -> None:
        for task in tasks:
            task.started = time.monotonic()
            began = time.thread_time()
            try:
                self._compute(task.rows)
            except Exception as error:
                log.exception("computing a grammar mask failed")
                task.error = error
            seconds = time.thread_time() - began
            for grammar in task.rows[0][0].grammars.values():
                grammar.mask_seconds = max(seconds, SLOW_DECAY * (grammar.mask_seconds or 0.0))
            with self._done:
                task.is_done = True
                self._done.notify_all()


def _lower_priority() -> None:
    """Lower the priority of this thread. Does nothing except on Linux, where each thread has a priority."""
    if sys.platform == "linux":
        give_way(threading.get_native_id())
