"""Operating system settings of the worker: signals, processors, threads and memory allocation."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path

from server.system.malloc import set_thresholds

SPIN_COUNT = "5000"
"""Turns of the loop in which a thread that waits for work spins before it sleeps: about 0.07 ms."""

_LOADING_BYTES, _SERVING_BYTES = 1 << 20, 4 << 20
"""Size in bytes from which malloc maps a block separately instead of taking it from the heap.

`_LOADING_BYTES`: while models load. `_SERVING_BYTES`: while steps run.
"""

_before_pinning: set[int] = set()
"""Processors of this process before `pin_to_processors`; empty if it was not pinned."""

_KEPT_BYTES = 8 << 20
"""Free bytes that the heap keeps at its end while steps run."""


def leave_signals_to_parent() -> None:
    """Ignore SIGINT, SIGTERM and SIGHUP, which can reach the whole process group.

    The parent handles them: it lets running requests finish and then sends `Shutdown`.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def pin_to_processors(processors: Collection[int]) -> None:
    """Run this process and its later threads on these logical processors only. Call before torch is imported.

    If the system refuses the set, nothing changes: the allowed processors may be fewer than when the set was chosen.
    """
    global _before_pinning
    if hasattr(os, "sched_setaffinity"):
        before = os.sched_getaffinity(0)
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, processors)
            _before_pinning = before


def use_all_processors() -> None:
    """Undo `pin_to_processors` for all threads, because the worker computes on another device than the CPU."""
    if _before_pinning:
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(task.name), _before_pinning)


def let_threads_sleep() -> None:
    """Let OpenMP threads that wait for work sleep soon instead of spinning. Call before torch is imported.

    The worker shares its cores with the HTTP process. If one thread of a parallel region has no core, the other threads
    wait for it, and would keep the cores busy by spinning. Measured on two busy cores, a step took ten times as long.
    OpenMP settings of the operator in the environment take precedence.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT


def map_large_blocks() -> None:
    """Let glibc map every block of 1 MiB and more separately. Call before loading.

    Otherwise blocks that loading frees would leave holes in the heap, and later steps would fill one hole after the
    other.
    """
    set_thresholds(_LOADING_BYTES, _LOADING_BYTES)


def reuse_large_blocks() -> None:
    """Return freed memory to the system, and let the heap keep the memory that a step frees for the next one.

    Call after loading. For small blocks, returning and mapping pages in every step would take longer than the
    computation. Blocks of 4 MiB and more are still mapped separately: their steps are long enough to hide the cost, and
    in the heap they would leave holes. Logits and the scratch memory of programs are allocated only once.
    """
    set_thresholds(_SERVING_BYTES, _KEPT_BYTES)
