"""Times of the stages of a request before the engine, for traces. Nothing is recorded unless a request is traced."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple


class Stage(NamedTuple):
    """A named part of a request. start, end: seconds of the monotonic clock."""

    name: str
    start: float
    end: float


STAGES: ContextVar[list[Stage] | None] = ContextVar("stages", default=None)
"""Stages of the current request so far; None if it is not traced. Tasks of a request share the list."""


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Context manager around one stage of the current request."""
    stages = STAGES.get()
    started = time.monotonic()
    try:
        yield
    finally:
        if stages is not None:
            stages.append(Stage(name, started, time.monotonic()))
