"""Protocol buffers as far as SentencePiece's files and answers need them, without the library for them.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator


def protobuf_fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(number, value) of each field of a message: integers, and the raw bytes of everything else.

    Raises ValueError or IndexError for bytes that are none.
    """
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}.get(wire) if wire != 2 else varint()
        if size is None or at + size > len(message):
            raise ValueError("truncated protocol buffer")
        yield number, message[at : at + size]
        at += size
