"""Read the protocol buffers that SentencePiece writes, without the protobuf library.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator

_MAX_SHIFT = 63
"""Highest bit position of a byte in an encoded integer: 64 bits take ten bytes of seven bits each."""


def protobuf_fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield (field number, value) of each field in a message. Values are integers, or the raw bytes of other types.

    Raises ValueError or IndexError for bytes that are not a message.
    """
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            if shift > _MAX_SHIFT:
                raise ValueError("a number of more than ten bytes")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        number, wire_type = divmod(varint(), 8)
        if wire_type == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}.get(wire_type) if wire_type != 2 else varint()
        if size is None or position + size > len(message):
            raise ValueError("truncated protocol buffer")
        yield number, message[position : position + size]
        position += size


def count_messages(message: bytes, most: int) -> int:
    """Count the fields of a message whose fields are all messages. Counts up to `most` + 1.

    Takes about a microsecond for each field. Raises ValueError or IndexError for other fields, and for bytes that are
    not a message.
    """
    position = count = 0
    while position < len(message) and count <= most:
        tag = message[position]
        while message[position] > 0x7F:
            position += 1
        position += 1
        if tag & 7 != 2:
            raise ValueError("a field that is no message")
        size = shift = 0
        while True:
            byte = message[position]
            position += 1
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > _MAX_SHIFT:
                raise ValueError("a number of more than ten bytes")
        position += size
        count += 1
    return count
