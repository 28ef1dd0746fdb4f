"""The bytes that each token adds to a text, for grammars, which decide byte by byte which tokens may follow.

With a grammar, the text of a completion is the concatenation of its tokens' bytes. Decoder steps that depend on several
tokens (stripping of white space, `clean_up_tokenization_spaces`) are not applied, because they could break the grammar.

Sources: GPT-2's byte alphabet (Radford et al. 2019, section 2.2); SentencePiece's `▁` and `<0x0A>` (Kudo and
Richardson 2018, arXiv:1808.06226, section 3).
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from server.text.tokens.streams import byte_level, byte_of


class NoTokenBytes(ValueError):
    """The bytes that a token adds to a text depend on neighbouring tokens, so this tokenizer cannot run grammars."""


@dataclass(frozen=True)
class TokenBytes:
    """The bytes of each token in a vocabulary.

    by_id: bytes of each token, by id; empty for tokens that are not text (special tokens).
    opens_with_space: whether the first token of a text begins with a space that is not part of the text.
    """

    by_id: tuple[bytes, ...]
    opens_with_space: bool

    @cached_property
    def ids(self) -> Mapping[bytes, int]:
        """Token id, by the bytes of the token.

        Of several tokens with the same bytes, the last one is used, because byte tokens come first in a vocabulary.
        """
        return {data: token_id for token_id, data in enumerate(self.by_id) if data}

    @cached_property
    def longest(self) -> int:
        """Number of bytes of the longest token."""
        return max(map(len, self.by_id), default=0)

    def stream(self, special_text: Callable[[int], str | None], *, drop_space: bool) -> TokenBytesStream:
        """Create a decoder for one completion.

        special_text: returns the text to show for the id of a token without bytes; None for no text.
        drop_space: whether to drop a space at the start of the first token.
        """
        return TokenBytesStream(self, special_text, drop_space)


class TokenBytesStream:
    """Decodes token ids by the bytes of each token alone. Invalid UTF-8 becomes U+FFFD. Implements `TokenStream`."""

    def __init__(self, token_bytes: TokenBytes, special_text: Callable[[int], str | None], drop_space: bool) -> None:
        self._token_bytes, self._special_text, self._drop_space = token_bytes, special_text, drop_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        data = self._token_bytes.by_id[token_id] if token_id < len(self._token_bytes.by_id) else b""
        if not data:
            return self._special_text(token_id) or ""
        if self._drop_space:
            self._drop_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)

    def fork(self) -> TokenBytesStream:
        other = TokenBytesStream(self._token_bytes, self._special_text, self._drop_space)
        other._decoder = deepcopy(self._decoder)
        return other


def bytes_of_piece(piece: str) -> bytes:
    """Return the bytes that a SentencePiece piece adds to a text: `▁` is a space, and `<0x0A>` is a single byte."""
    byte = byte_of(piece)
    return piece.replace("▁", " ").encode() if byte is None else bytes([byte])


def bytes_of_decoder(decoder: Mapping[str, Any] | None) -> tuple[Callable[[str], bytes], bool]:
    """Return a function from a token to its bytes, and whether the decoder drops a space at the start of the text.

    decoder: the object `decoder` of `tokenizer.json`.
    Raises NoTokenBytes if there is no decoder, or if it does not decode each token independently.
    """
    if decoder is None:
        raise NoTokenBytes("its tokenizer has no decoder")
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    replacements: list[tuple[str, str]] = []
    opens_with_space = byte_fallback = is_byte_level = fused = False
    for part in parts:
        match part:
            case {"type": "Fuse"}:
                fused = True
            case {"type": "ByteFallback"} if not fused:
                byte_fallback = True
            case {"type": "ByteLevel"} if not fused and len(parts) == 1:
                is_byte_level = True
            case {"type": "Replace", "pattern": {"String": old}, "content": new} if not fused:
                replacements.append((old, new))
            case {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme} if not fused:
                replacements.append((mark, " "))
                opens_with_space = scheme != "never"
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0} if fused:
                opens_with_space = True
            case _:
                raise NoTokenBytes(f"its tokenizer's decoder {part.get('type')!r} looks at several tokens")

    def to_bytes(token: str) -> bytes:
        if is_byte_level:
            return byte_level(token)
        byte = byte_of(token) if byte_fallback else None
        if byte is not None:
            return bytes([byte])
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    return to_bytes, opens_with_space
