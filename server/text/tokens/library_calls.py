"""Calls of the `tokenizers` library with the text of a request: a panic fails one request, and a hang is contained.

A panic is a fault of the library's Rust code. Python sees it as a BaseException, which would pass all handlers. A call
cannot be stopped: it runs in a thread until it ends. The bounds of `server.text.tokenizers.components` keep calls
short. Where they overlook an expression that takes too long, further texts are refused, so that few threads hang.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from server.errors import EngineFailure

BUSY_SECONDS = 60.0
"""Sixteen of the largest texts at once take ten seconds on two slow cores."""


def panic_of(error: BaseException) -> BaseException | None:
    """The error, if it is a panic. Its class cannot be imported, only recognised by its name."""
    return error if type(error).__name__ == "PanicException" else None


class LibraryCalls:
    """The calls of one tokenizer that are in progress. Safe to use from several threads. clock: current time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started: dict[int, float] = {}
        self._numbers = itertools.count()

    def call(self) -> AbstractContextManager[None]:
        """A block with one call.

        Raises EngineFailure for a panic, and instead of the call while another one has run for `BUSY_SECONDS`.
        """
        return _Call(self._started, next(self._numbers), self._clock)


class _Call:
    def __init__(self, started: dict[int, float], number: int, clock: Callable[[], float]) -> None:
        self._started, self._number, self._clock = started, number, clock

    def __enter__(self) -> None:
        now = self._clock()
        if any(now - since > BUSY_SECONDS for since in tuple(self._started.values())):
            raise EngineFailure(f"the tokenizer has worked at another text for more than {BUSY_SECONDS:g} s")
        self._started[self._number] = now

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._started.pop(self._number, None)
        # The library raises plain exceptions, for example for a word without an unknown token.
        if error is not None and (panic_of(error) is not None or type(error) is Exception):
            raise EngineFailure("the tokenizer of the model failed on this text") from None
