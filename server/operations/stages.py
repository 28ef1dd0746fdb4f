"""Record how long a traced request spends in each stage of the HTTP process before the engine gets it.

Nothing is recorded for other requests.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple


class Stage(NamedTuple):
    """A named stage of a request's work. start, end: seconds of the monotonic clock."""

    name: str
    start: float
    end: float


STAGES: ContextVar[list[Stage] | None] = ContextVar("stages", default=None)
"""Ended stages of the current request; None if it is not traced. All asyncio tasks of a request share the list."""


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Context manager around one stage: records its start and end if the current request is traced."""
    stages = STAGES.get()
    started = time.monotonic()
    try:
        yield
    finally:
        if stages is not None:
            stages.append(Stage(name, started, time.monotonic()))
