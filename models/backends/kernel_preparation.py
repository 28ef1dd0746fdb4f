"""Watch the preparation of GPU kernels: at its first launch, a kernel is compiled or read from a cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class KernelPreparation:
    """Counts the kernels that were prepared, and tells whether one is being prepared.

    The attributes may be read from another thread.

    num_kernels: number of prepared kernels. seconds: time that they took together.
    since: time of time.monotonic() at which the kernel in progress was begun; None while there is none.
    on_start: called before each kernel.
    """

    def __init__(self) -> None:
        self.num_kernels = 0
        self.seconds = 0.0
        self.since: float | None = None
        self.on_start: Callable[[], None] = lambda: None

    @contextmanager
    def one(self) -> Iterator[None]:
        """Context in which one kernel is prepared. A kernel that fails is not counted."""
        self.since = started = time.monotonic()
        self.on_start()
        try:
            yield
            self.num_kernels += 1
        finally:
            self.seconds += time.monotonic() - started
            self.since = None


PREPARATION = KernelPreparation()
"""Preparation of all kernels of this process."""
