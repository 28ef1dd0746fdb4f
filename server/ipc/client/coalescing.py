"""Sends requests that arrive together to an idle worker in one write.

A worker starts a step with the requests that it has. Without coalescing, the first request of a burst would get a step
alone while the other requests are still being read. They would then join a few at a time, because a step with running
streams takes little prefill work. A single request is delayed by a few iterations of the event loop.
See docs/decisions/0024-events-past-the-event-loop.md.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from server.ipc.wire.message_base import Message

QUIET_ITERATIONS = 2
"""A burst counts as complete after more than this number of iterations of the event loop without a new message."""
_POLL_SECONDS = 0.0005


class Send(Protocol):
    """Sends messages to the worker in one write."""

    def __call__(self, *messages: Message) -> None: ...


class MessageCoalescer:
    """Holds back messages for an idle worker until their burst is complete.

    send: sends messages to the worker.
    max_delay_seconds: longest time that a message is held back; 0 disables coalescing.
    preparing: number of requests that are being tokenized in a thread and will follow soon.
    """

    def __init__(self, send: Send, max_delay_seconds: float) -> None:
        self._send = send
        self._max_delay_seconds = max_delay_seconds
        self._held: list[Message] = []
        self._quiet_turns = 0
        self._send_at = 0.0
        self.preparing = 0

    def post(self, message: Message, idle: bool) -> None:
        """Send a message after all earlier messages. idle: whether the worker has no work except messages held back."""
        if not self._held:
            if not (idle and self._max_delay_seconds):
                self._send(message)
                return
            self._send_at = time.monotonic() + self._max_delay_seconds
            asyncio.get_running_loop().call_soon(self._poll)
        self._held.append(message)
        self._quiet_turns = 0

    def _poll(self) -> None:
        """Send the held messages if the burst is complete, else check again soon."""
        self._quiet_turns += 1
        loop, is_quiet = asyncio.get_running_loop(), self._quiet_turns > QUIET_ITERATIONS
        if time.monotonic() >= self._send_at or (is_quiet and not self.preparing):
            held, self._held = self._held, []
            self._send(*held)
        elif is_quiet:
            loop.call_later(_POLL_SECONDS, self._poll)
        else:
            loop.call_soon(self._poll)
