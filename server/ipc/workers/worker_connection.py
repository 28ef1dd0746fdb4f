"""The server's end of the socket to a worker: message frames in both directions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

import msgspec

from server.ipc.wire.messages import FRAME_HEADER, FromWorker, Message, decode_from_worker, encode_frame

log = logging.getLogger("triptych.supervisor")

MAX_FRAME_BYTES = 1 << 30


class WorkerConnection(asyncio.Protocol):
    """Reads and writes message frames on the socket of one worker."""

    def __init__(self, on_message: Callable[[FromWorker], None]) -> None:
        self._on_message = on_message
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.broken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= FRAME_HEADER.size:
            (length,) = FRAME_HEADER.unpack_from(buffer, start)
            end = start + FRAME_HEADER.size + length
            if length > MAX_FRAME_BYTES:
                self._break(f"a frame of {length:,} bytes, limit {MAX_FRAME_BYTES:,}")
                return
            if len(buffer) < end:
                break
            try:
                with memoryview(buffer) as view, view[start + FRAME_HEADER.size : end] as body:
                    message = decode_from_worker(body)
            except msgspec.MsgspecError as error:
                self._break(str(error))
                return
            self._on_message(message)
            start = end
        del buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
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
