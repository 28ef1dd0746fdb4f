"""Frames on the socket between a worker and the HTTP process: a length (4 bytes, little-endian), then one message."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from server.ipc.wire.message_base import Message
from server.ipc.wire.messages import encode

FRAME_HEADER = struct.Struct("<I")
MAX_FRAME_BYTES = 1 << 30

Received = TypeVar("Received")


class FrameTooLarge(ValueError):
    """A frame announces more bytes than `MAX_FRAME_BYTES`."""


def encode_frame(message: Message) -> bytes:
    """The frame of a message."""
    body = encode(message)
    return FRAME_HEADER.pack(len(body)) + body


class FrameReader(Generic[Received]):
    """Cuts received bytes into frames, and decodes their messages. Bytes of an incomplete frame are kept."""

    def __init__(self, decode: Callable[[memoryview], Received]) -> None:
        self._decode = decode
        self._buffer = bytearray()

    def read(self, received: bytes | memoryview) -> Iterator[Received]:
        """Add received bytes, and yield each message that is complete.

        Raises FrameTooLarge if a frame announces too many bytes, and msgspec.MsgspecError for an invalid message. The
        connection cannot be used after such an error.
        """
        buffer = self._buffer
        buffer += received
        start = 0
        try:
            while len(buffer) - start >= FRAME_HEADER.size:
                (length,) = FRAME_HEADER.unpack_from(buffer, start)
                if length > MAX_FRAME_BYTES:
                    raise FrameTooLarge(f"a frame of {length:,} bytes, limit {MAX_FRAME_BYTES:,}")
                body, end = start + FRAME_HEADER.size, start + FRAME_HEADER.size + length
                if len(buffer) < end:
                    return
                with memoryview(buffer) as view, view[body:end] as bytes_of_message:
                    message = self._decode(bytes_of_message)
                start = end
                yield message
        finally:
            del buffer[:start]
