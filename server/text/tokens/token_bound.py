"""Bound the number of tokens that a text can have, from its characters and without tokenizing it.

A tokenizer first normalizes a text, which may replace a character by several (Unicode Standard Annex 15). Then each
character becomes at most one token, or each byte of UTF-8 if the tokenizer has tokens for single bytes.
"""

from __future__ import annotations

import base64
import json
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import normalizers

LONGEST_CHARACTER = "\ufdfa"
"""The character that grows most: to 18 characters and 33 bytes in the forms NFKC and NFKD."""
LONGEST_BYTES = 33

_GROWTH = {"NFC": (3, 12), "NFD": (4, 12), "NFKC": (8, 18), "NFKD": (8, 18), "Lowercase": (2, 4)}
"""Maximum number of characters, and of bytes, that one character becomes in a Unicode normal form; `LONGEST_CHARACTER`
is not counted."""
_FORM_OF = {
    "NFC": "NFC",
    "NFD": "NFD",
    "NFKC": "NFKC",
    "NFKD": "NFKD",
    "Precompiled": "NFKC",
    "BertNormalizer": "NFD",
    "Lowercase": "Lowercase",
}
"""Form of a normalizer of the `tokenizers` library. `Precompiled` is NFKC with small changes (SentencePiece)."""
_NEUTRAL = frozenset({"Sequence", "Strip", "StripAccents", "Nmt", "ByteLevel", "Prepend"})
_ASCII = [chr(code) for code in range(128)]


@cache
def _composed() -> list[str]:
    """The characters that a Unicode normal form makes longer, without `LONGEST_CHARACTER`."""
    characters = (chr(code) for code in range(128, sys.maxunicode + 1))
    return [
        character
        for character in characters
        if character != LONGEST_CHARACTER and len(unicodedata.normalize("NFKD", character)) > 1
    ]


def character_map_texts(charsmap: bytes) -> list[bytes]:
    """The texts that a character map of SentencePiece makes of characters: length of a trie, the trie, then texts that
    each end with a zero."""
    return charsmap[4 + int.from_bytes(charsmap[:4], "little") :].split(b"\0")


@dataclass(frozen=True)
class TokenBound:
    """Maximum number of tokens per character.

    ascii: maximum for an ASCII character.
    other: maximum for another character.
    longest: maximum for `LONGEST_CHARACTER`.
    """

    ascii: int = LONGEST_BYTES
    other: int = LONGEST_BYTES
    longest: int = LONGEST_BYTES

    def __call__(self, text: str) -> int:
        """Maximum number of tokens of a text, without the tokens that are added around it."""
        if text.isascii():
            return len(text) * self.ascii
        ascii_count = len(text.encode("ascii", "ignore"))
        longest = text.count(LONGEST_CHARACTER)
        return ascii_count * self.ascii + longest * self.longest + (len(text) - ascii_count - longest) * self.other


BYTES = TokenBound(1, 4, 4)
"""Each byte of UTF-8 is at most one token, and nothing is normalized."""


def bound_of_pieces(added: Iterable[str]) -> TokenBound:
    """The bound of a SentencePiece model without byte tokens: each character of the form NFKC is at most one token.

    added: tokens that are found before the text is split. SentencePiece puts a space before each section.
    """
    more = any(len(token) < 2 for token in added)
    return TokenBound(1 + more, _GROWTH["NFKC"][0] + more, 18 + more)


_ESCAPED = "&|<>'\"`[]-"
"""ASCII characters that the words of Moses write with several characters."""


@dataclass(frozen=True)
class MosesBound(TokenBound):
    """The bound of the words of Moses: special characters of XML become entities, such as `&quot;` with six characters.

    A hyphen between letters becomes `@-@`. Other ASCII characters are at most one token, and characters beyond ASCII at
    most as many as the longest entity, because some stand for quotation marks and brackets.
    """

    ascii: int = 1
    other: int = 6
    longest: int = 6

    def __call__(self, text: str) -> int:
        return super().__call__(text) + (self.other - 1) * sum(map(text.count, _ESCAPED))


def bound_of(tokenizer: LibraryTokenizer) -> TokenBound:
    """The bound of a tokenizer of the `tokenizers` library."""
    ascii_growth, characters, size, replacements = 1, 1, 4, 1
    spaces = "\N{LOWER ONE EIGHTH BLOCK}"
    steps = list(_steps(_state(tokenizer.normalizer), "normalizers"))
    for step in steps:
        kind = step["type"]
        if kind == "Replace":
            matched = len(step["pattern"].get("String", "")) or 1
            replacements *= max(1, -(-len(step["content"]) // matched))
        elif kind in _FORM_OF:
            growth = _GROWTH[_FORM_OF[kind]]
            characters, size = max(characters, growth[0]), max(size, growth[1])
        elif kind not in _NEUTRAL:
            return TokenBound()
        if kind == "Precompiled":
            ascii_growth, texts_characters, texts_bytes = _mapped(tokenizer, steps)
            characters, size = max(characters, texts_characters), max(size, texts_bytes)
    parts = list(_steps(_state(tokenizer.pre_tokenizer), "pretokenizers"))
    kinds = {step["type"] for step in parts}
    has_bytes = "ByteLevel" in kinds or bool(getattr(tokenizer.model, "byte_fallback", False))
    if has_bytes and "ByteLevel" not in kinds and tokenizer.token_to_id(spaces) is None:
        return TokenBound()
    more = _put_before_characters(tokenizer, parts)
    other = size if has_bytes else characters
    longest = other
    if characters >= _GROWTH["NFKC"][0]:
        longest = LONGEST_BYTES if has_bytes else 18
    if "ByteLevel" in {step["type"] for step in steps}:  # writes each byte as a character, which may have two bytes
        ascii_growth, other, longest = 2 * ascii_growth, 2 * size, 2 * LONGEST_BYTES
    longest = max(longest, other)
    return TokenBound(*(replacements * (most + more) for most in (ascii_growth, other, longest)))


def _mapped(tokenizer: LibraryTokenizer, steps: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
    """What a character map makes of one character: characters of an ASCII one, and characters and bytes of another one.

    A foreign map may lengthen any character. The texts of the map are counted; where other steps lengthen characters
    too, such as NFKD, the whole normalizer is applied to all characters that they lengthen.
    """
    charsmap = next(step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled")
    content = base64.b64decode(charsmap) if isinstance(charsmap, str) else bytes(charsmap)
    lengthen = normalizers.Precompiled(content)
    known = unicodedata.normalize("NFKC", LONGEST_CHARACTER).encode()
    texts = [text.decode(errors="replace") for text in character_map_texts(content) if text != known]
    found = [*texts, *(lengthen.normalize_str(character) for character in _ASCII)]
    ascii_growth = max(map(len, found[len(texts) :]))
    if any(step["type"] in _FORM_OF and step["type"] != "Precompiled" for step in steps):
        found += map(tokenizer.normalizer.normalize_str, _composed())
    return ascii_growth, max(map(len, found)), max(len(text.encode()) for text in found)


def _put_before_characters(tokenizer: LibraryTokenizer, parts: Sequence[Mapping[str, Any]]) -> int:
    """Number of characters that may be put before a single character, each of which can become a token of its own.

    A space, or the text of a normalizer, is put before sections between added tokens, and before the parts that another
    pre-tokenizer has split.
    """
    prefixes = sum(
        bool(step.get("add_prefix_space") or step.get("prepend_scheme", "never") != "never") for step in parts
    ) + sum(len(step.get("prepend", "")) for step in _steps(_state(tokenizer.normalizer), "normalizers"))
    splits = {step["type"] for step in parts} - {"ByteLevel", "Metaspace", "WhitespaceSplit"}
    short = any(len(token.content) < 2 for token in tokenizer.get_added_tokens_decoder().values())
    return prefixes if splits or short else 0


def _steps(state: Mapping[str, Any] | None, name: str) -> Iterator[Mapping[str, Any]]:
    """The parts of a normalizer or pre-tokenizer. name: the field of a sequence that holds its parts."""
    if state is None:
        return
    if state["type"] == "Sequence":
        for step in state[name]:
            yield from _steps(step, name)
    else:
        yield state


def _state(component: Any) -> Mapping[str, Any] | None:
    """A normalizer or pre-tokenizer as in `tokenizer.json`."""
    if component is None:
        return None
    found: Mapping[str, Any] = json.loads(component.__getstate__())
    return found
