"""Write SentencePiece model files without the library, so that they can be invalid."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def pieces(texts: Sequence[str], *, score: float = -1.0, model_type: int = 1, charsmap: bytes = b"") -> bytes:
    """The bytes of a model file. The first piece is the unknown token.

    texts: text of each piece. score: score of every piece. charsmap: character map of the normaliser.
    """
    content = bytearray()
    for index, text in enumerate(texts):
        piece = (
            _bytes(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + (b"\x01" if index else b"\x02")
        )
        content += _bytes(1, piece)
    content += _bytes(2, b"\x18" + bytes([model_type]))
    return bytes(content + (_bytes(3, _bytes(2, charsmap)) if charsmap else b""))


def _bytes(field: int, content: bytes) -> bytes:
    return bytes([field * 8 + 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])
