"""What each token adds to a text, in bytes: for grammars, which decide byte by byte what may follow.

A text is then the bytes of its tokens, one after the other, and nothing of a decoder that would look at several of them
(white space cut off, `clean_up_tokenization_spaces`) has a say, or a text might leave its grammar afterwards.

Spellings: GPT-2's byte alphabet (Radford et al. 2019, section 2.2), and SentencePiece's `▁` and `<0x0A>` (Kudo and
Richardson 2018, arXiv:1808.06226, section 3).
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from server.text.streams import byte_level, byte_of


class NoSpelling(ValueError):
    """A tokenizer whose tokens have no bytes of their own, because they depend on their neighbours."""


@dataclass(frozen=True)
class Spelling:
    """A vocabulary in bytes.

    tokens: by id; empty for tokens that are no text. opens_with_space: whether a text on its own begins with a space
    that belongs to its first word's spelling and not to the text.
    """

    tokens: tuple[bytes, ...]
    opens_with_space: bool

    def stream(self, named: Callable[[int], str | None], *, drop_space: bool) -> VerbatimStream:
        """The text of one answer. named: what to show of a token that is no text, if anything."""
        return VerbatimStream(self, named, drop_space)


class VerbatimStream:
    """Token ids to text, by their spelling alone (a `TokenStream`)."""

    def __init__(self, spelling: Spelling, named: Callable[[int], str | None], drop_space: bool) -> None:
        self._spelling, self._named, self._drop_space = spelling, named, drop_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        spelled = self._spelling.tokens[token_id] if token_id < len(self._spelling.tokens) else b""
        if not spelled:
            return self._named(token_id) or ""
        if self._drop_space:
            self._drop_space = False
            spelled = spelled.removeprefix(b" ")
        return self._decoder.decode(spelled)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)

    def fork(self) -> VerbatimStream:
        copy = VerbatimStream(self._spelling, self._named, self._drop_space)
        copy._decoder = deepcopy(self._decoder)
        return copy


def spell_piece(piece: str) -> bytes:
    """The bytes of a SentencePiece piece."""
    byte = byte_of(piece)
    return piece.replace("▁", " ").encode() if byte is None else bytes([byte])


def speller(decoder: Mapping[str, Any] | None) -> tuple[Callable[[str], bytes], bool]:
    """How a decoder of `tokenizer.json` spells one token, and whether it drops the space that a text begins with.

    Raises NoSpelling for a decoder whose tokens cannot be spelled one by one.
    """
    if decoder is None:
        raise NoSpelling("a tokenizer without a decoder")
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    replacements: list[tuple[str, str]] = []
    opens_with_space = bytes_as_tokens = in_bytes = fused = False
    for part in parts:
        match part:
            case {"type": "Fuse"}:
                fused = True
            case {"type": "ByteFallback"} if not fused:
                bytes_as_tokens = True
            case {"type": "ByteLevel"} if not fused and len(parts) == 1:
                in_bytes = True
            case {"type": "Replace", "pattern": {"String": old}, "content": new} if not fused:
                replacements.append((old, new))
            case {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme} if not fused:
                replacements.append((mark, " "))
                opens_with_space = scheme != "never"
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0} if fused:
                opens_with_space = True
            case _:
                raise NoSpelling(f"a tokenizer with the decoder {part.get('type')!r}")

    def spell(token: str) -> bytes:
        if in_bytes:
            return byte_level(token)
        byte = byte_of(token) if bytes_as_tokens else None
        if byte is not None:
            return bytes([byte])
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    return spell, opens_with_space
