"""Call the `tokenizers` library so that its faults fail single requests only.

A panic of the library's Rust code is a BaseException in Python, which would pass all handlers. It becomes an error of
the request. A call cannot be stopped: it keeps its thread until it ends. The limits of
`server.text.tokenizers.components` keep calls short. If a call still takes too long, further texts are refused, so that
few threads hang.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from server.errors import EngineFailure

BUSY_SECONDS = 60.0
"""Running time of a call after which further calls are refused.

Sixteen of the largest texts at once take ten seconds on two slow cores.
"""


def panic_of(error: BaseException) -> BaseException | None:
    """Return the error if it is a panic of Rust code, else None. The class of panics can only be known by its name."""
    return error if type(error).__name__ == "PanicException" else None


class LibraryCalls:
    """Keeps track of the calls of one tokenizer that are in progress. Safe to use from several threads.

    clock: returns the current time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started: dict[int, float] = {}
        self._numbers = itertools.count()

    def call(self) -> AbstractContextManager[None]:
        """Return the context manager for a block that calls the library.

        Raises EngineFailure at the start of the block if another call has run for `BUSY_SECONDS`, and at its end if the
        library panicked or raised a plain Exception.
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
