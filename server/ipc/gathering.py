"""Requests that come together reach an idle worker together. Knows messages and the event loop.

A worker begins a step with whatever is there. Where many requests come at once, the first of them would get a step of
its own while the others are still being read, and these would then join it a few at a time, so that streams are not
held up (docs/decisions/0024-events-past-the-event-loop.md). Alone, a request waits for two turns of the loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from server.ipc.messages import Message

QUIET_TURNS = 2
"""Turns of the event loop that bring nothing new: whoever came at the same time has been read."""
_LOOK_SECONDS = 0.0005


class Send(Protocol):
    """Takes messages to the worker, all of them in one write."""

    def __call__(self, *messages: Message) -> None: ...


class Gathering:
    """In front of a worker's socket. seconds: how long a message is held at most; 0: never.

    preparing: requests whose text is being worked on in a thread, which will follow soon.
    """

    def __init__(self, send: Send, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self._held: list[Message] = []
        self._quiet_turns = 0
        self._last_moment = 0.0
        self.preparing = 0

    def post(self, message: Message, idle: bool) -> None:
        """Send a message, after those posted earlier. idle: whether the worker has nothing to do but these."""
        if not self._held:
            if not (idle and self._seconds):
                self._send(message)
                return
            self._last_moment = time.monotonic() + self._seconds
            asyncio.get_running_loop().call_soon(self._look)
        self._held.append(message)
        self._quiet_turns = 0

    def _look(self) -> None:
        self._quiet_turns += 1
        loop, is_quiet = asyncio.get_running_loop(), self._quiet_turns > QUIET_TURNS
        if time.monotonic() >= self._last_moment or (is_quiet and not self.preparing):
            held, self._held = self._held, []
            self._send(*held)
        elif is_quiet:
            loop.call_later(_LOOK_SECONDS, self._look)
        else:
            loop.call_soon(self._look)
