"""The time limits of one request: for its wait, for its whole answer, and for a time without progress.

A request waits until the engine computes its first row. From then on it may take any time, as long as the engine
computes tokens for it: prompt tokens, new tokens, or tokens of a text to encode. While all its rows wait for other
requests, it is enough that the engine computes anything. The whole answer has a limit only if the client or the
operator sets one. Times are seconds of `time.monotonic()`. See docs/decisions/0111-deadlines.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from server.ipc.wire.step_messages import FailureCode

NO_PROGRESS_SECONDS = 120.0
"""A started request fails if the engine has computed nothing for it during this time. While all its rows wait, it fails
only if the engine has computed nothing for any request during this time."""


class TimeLimit(NamedTuple):
    """One time limit of a request. time: when the limit passes. code, message: how the request then fails."""

    time: float
    code: FailureCode
    message: str


@dataclass
class TimeLimits:
    """The limits of one request.

    deadline: time at which the answer ends, complete or not; None for no limit.
    queue_seconds: longest wait until the engine computes the first row; None for no limit.
    since: start of the wait.
    progressed: time at which the engine last computed something for the request; None before the first row. Sending a
        later message of the request also counts as progress.
    is_idle: whether the engine has no rows of the request now.
    others_progressed: while all rows of this request wait, returns the time at which the engine last computed something
        for any request; otherwise returns None.
    """

    deadline: float | None = None
    queue_seconds: float | None = None
    since: float = field(default_factory=time.monotonic)
    progressed: float | None = None
    is_idle: bool = False
    others_progressed: Callable[[], float | None] = lambda: None

    @property
    def start_deadline(self) -> float | None:
        """Time at which the request fails if no row has started; None without a limit, and after a row has started."""
        return None if self.queue_seconds is None or self.progressed is not None else self.since + self.queue_seconds

    def first(self, slack_seconds: float = 0.0) -> TimeLimit | None:
        """The limit that passes first; None if there is none. slack_seconds: added to the deadline of the answer."""
        found = min(self._times(slack_seconds), default=None)
        if found is None:
            return None
        passes, kind = found
        if kind == "deadline":
            return TimeLimit(passes, "timeout", "the deadline passed")
        if kind == "start":
            waited = f"the request waited {self.queue_seconds:g} s and was not started (--queue-timeout-seconds)"
            return TimeLimit(passes, "timeout", waited)
        of = "this request" if self.others_progressed() is None else "any request"
        stalled = f"the engine computed nothing for {of} during {NO_PROGRESS_SECONDS:g} s"
        return TimeLimit(passes, "engine_error", stalled)

    def next_time(self, slack_seconds: float = 0.0) -> float | None:
        """Time at which the first limit passes; None without limits. slack_seconds: added to the deadline of the
        answer.
        """
        found = min(self._times(slack_seconds), default=None)
        return None if found is None else found[0]

    @property
    def next_deadline(self) -> float | None:
        """Time at which the first limit passes; None if there is no limit."""
        return self.next_time()

    def passed(self) -> TimeLimit | None:
        """The first limit if its time has passed, else None."""
        passes = self.next_time()
        return self.first() if passes is not None and passes <= time.monotonic() else None

    def _times(self, slack_seconds: float) -> list[tuple[float, Literal["deadline", "start", "progress"]]]:
        """The time at which each limit passes. slack_seconds: added to the deadline of the answer."""
        found: list[tuple[float, Literal["deadline", "start", "progress"]]] = []
        if self.deadline is not None:
            found.append((self.deadline + slack_seconds, "deadline"))
        if self.start_deadline is not None:
            found.append((self.start_deadline, "start"))
        if self.progressed is not None and not self.is_idle:
            others = self.others_progressed()
            progressed = self.progressed if others is None else max(self.progressed, others)
            found.append((progressed + NO_PROGRESS_SECONDS, "progress"))
        return found


class LimitTimer:
    """Calls a function once when the first limit of a request passes. Progress of the request postpones that time.

    expired: function that receives the limit that has passed.
    slack_seconds: added to the deadline of the answer.
    """

    def __init__(self, limits: TimeLimits, expired: Callable[[TimeLimit], None], slack_seconds: float = 0.0) -> None:
        self._limits = limits
        self._expired = expired
        self._slack_seconds = slack_seconds
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._handle is not None

    def start(self) -> None:
        """Start the timer for the first limit, if there is one. A running timer is replaced."""
        self.stop()
        passes = self._limits.next_time(self._slack_seconds)
        if passes is not None:
            delay = max(passes - time.monotonic(), 0.0)
            self._handle = asyncio.get_running_loop().call_later(delay, self._check)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _check(self) -> None:
        self._handle = None
        limit = self._limits.first(self._slack_seconds)
        if limit is not None and limit.time <= time.monotonic():
            self._expired(limit)
        else:
            self.start()
