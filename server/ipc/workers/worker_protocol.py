"""The server's end of the socket to a worker: sends and receives message frames on the event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import cast

import msgspec

from server.ipc.wire.frames import FrameReader, FrameTooLarge, encode_frame
from server.ipc.wire.message_base import Message
from server.ipc.wire.messages import FromWorker, decode_from_worker

log = logging.getLogger("triptych.supervisor")

TURN_SECONDS = 0.001
"""Seconds after which an iteration of the event loop handles no further message."""


class WorkerProtocol(asyncio.Protocol):
    """Reads and writes message frames on the socket of one worker.

    on_message: called with each message of the worker.
    closed: future that is done when the socket is closed.
    broken: whether the socket was closed because of an invalid message.
    """

    def __init__(self, on_message: Callable[[FromWorker], None]) -> None:
        self._on_message = on_message
        self._frames = FrameReader(decode_from_worker)
        self._messages: deque[FromWorker] = deque()
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.broken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        is_first = not self._messages
        try:
            self._messages += self._frames.read(data)
        except (FrameTooLarge, msgspec.MsgspecError) as error:
            self._break(str(error))
        if is_first:
            self._pass_on()

    def _pass_on(self) -> None:
        """Handle received messages for at most `TURN_SECONDS`. The next iteration of the event loop continues.

        After the event loop was blocked, the messages of many steps may be waiting. Handling all of them at once would
        block it again.
        """
        began = time.monotonic()
        while self._messages and time.monotonic() - began < TURN_SECONDS:
            self._on_message(self._messages.popleft())
        if self._messages:
            asyncio.get_running_loop().call_soon(self._pass_on)

    def connection_lost(self, exc: Exception | None) -> None:
        while self._messages:
            self._on_message(self._messages.popleft())
        if not self.closed.done():
            self.closed.set_result(None)

    def send(self, *messages: Message) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join([encode_frame(message) for message in messages]))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _break(self, reason: str) -> None:
        log.error("the worker sent an invalid message (%s); replacing it", reason)
        self.broken = True
        self.close()
