"""Compute an upper bound on the number of tokens of a text from its characters, without tokenizing it.

A tokenizer first normalizes a text, which may replace one character by several (Unicode Standard Annex 15). Then each
character becomes at most one token; with a tokenizer that has tokens for single bytes, each byte of UTF-8 does.
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
"""The character that becomes longest by normalization: 18 characters and 33 bytes in the forms NFKC and NFKD."""
LONGEST_BYTES = 33

_GROWTH = {"NFC": (3, 12), "NFD": (4, 12), "NFKC": (8, 18), "NFKD": (8, 18), "Lowercase": (2, 4)}
"""Most (characters, bytes) that one character becomes, by normalization form. `LONGEST_CHARACTER` is not counted."""
_FORM_OF = {
    "NFC": "NFC",
    "NFD": "NFD",
    "NFKC": "NFKC",
    "NFKD": "NFKD",
    "Precompiled": "NFKC",
    "BertNormalizer": "NFD",
    "Lowercase": "Lowercase",
}
"""Normalization form, by the type of a normalizer of the `tokenizers` library.

`Precompiled` is the character map of SentencePiece, usually NFKC with small changes.
"""
_NEUTRAL = frozenset({"Sequence", "Strip", "StripAccents", "Nmt", "ByteLevel", "Prepend"})
_ASCII = [chr(code) for code in range(128)]


@cache
def _composed() -> list[str]:
    """The characters that become several characters in the form NFKD, without `LONGEST_CHARACTER`."""
    characters = (chr(code) for code in range(128, sys.maxunicode + 1))
    return [
        character
        for character in characters
        if character != LONGEST_CHARACTER and len(unicodedata.normalize("NFKD", character)) > 1
    ]


def character_map_texts(charsmap: bytes) -> list[bytes]:
    """Return the texts by which a SentencePiece character map replaces characters, in UTF-8.

    charsmap: the length of a trie (4 bytes, little endian), the trie, then the texts, each of which ends with a zero.
    """
    return charsmap[4 + int.from_bytes(charsmap[:4], "little") :].split(b"\0")


@dataclass(frozen=True)
class TokenBound:
    """Upper bound on the number of tokens of a text. Called with a text, it returns the bound.

    ascii: most tokens for an ASCII character.
    other: most tokens for any other character, except `LONGEST_CHARACTER`.
    longest: most tokens for `LONGEST_CHARACTER`.
    """

    ascii: int = LONGEST_BYTES
    other: int = LONGEST_BYTES
    longest: int = LONGEST_BYTES

    def __call__(self, text: str) -> int:
        """Most tokens that a text can have, not counting special tokens that are added around it."""
        if text.isascii():
            return len(text) * self.ascii
        ascii_count = len(text.encode("ascii", "ignore"))
        longest = text.count(LONGEST_CHARACTER)
        return ascii_count * self.ascii + longest * self.longest + (len(text) - ascii_count - longest) * self.other


BYTES = TokenBound(1, 4, 4)
"""Bound for a tokenizer with one token per byte of UTF-8 and no normalization."""


def bound_of_pieces(added: Iterable[str]) -> TokenBound:
    """Return the bound for a SentencePiece model without byte tokens: one token per character of the text in NFKC.

    added: texts of the added tokens, at which a text is split. SentencePiece puts a space before each section between
        them, so added tokens of a single character raise the bound.
    """
    more = any(len(token) < 2 for token in added)
    return TokenBound(1 + more, _GROWTH["NFKC"][0] + more, 18 + more)


_ESCAPED = "&|<>'\"`[]-"
"""ASCII characters that Moses writes with several characters: XML entities, and `@-@` for a hyphen."""


@dataclass(frozen=True)
class MosesBound(TokenBound):
    """The bound for a tokenizer that splits texts by the rules of Moses.

    Special characters of XML become entities, such as `&quot;` with six characters, and a hyphen between letters
    becomes `@-@`. Other ASCII characters are at most one token. Characters beyond ASCII count as the longest entity,
    because some are replaced by quotation marks and brackets.
    """

    ascii: int = 1
    other: int = 6
    longest: int = 6

    def __call__(self, text: str) -> int:
        return super().__call__(text) + (self.other - 1) * sum(map(text.count, _ESCAPED))


def bound_of(tokenizer: LibraryTokenizer) -> TokenBound:
    """Return the bound for a tokenizer of the `tokenizers` library, from its normalizer, pre-tokenizer and model.

    An unknown kind of normalizer gets the largest bound.
    """
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
    """Measure how long a SentencePiece character map makes one character.

    The map may lengthen any character, so all its texts are measured. If other steps lengthen characters too, such as
    NFKD, the whole normalizer is also applied to the characters that they lengthen.

    steps: parts of the normalizer; one of them is `Precompiled`, which has the map.
    Returns the most characters for an ASCII character, and the most characters and bytes for any character.
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
    """Number of characters that a tokenizer may put before a single character. Each can become a separate token.

    A space, or the text of a `Prepend` normalizer, is put before each section between added tokens, and before each
    part into which another pre-tokenizer has split the text.

    parts: parts of the pre-tokenizer.
    """
    prefixes = sum(
        bool(step.get("add_prefix_space") or step.get("prepend_scheme", "never") != "never") for step in parts
    ) + sum(len(step.get("prepend", "")) for step in _steps(_state(tokenizer.normalizer), "normalizers"))
    splits = {step["type"] for step in parts} - {"ByteLevel", "Metaspace", "WhitespaceSplit"}
    short = any(len(token.content) < 2 for token in tokenizer.get_added_tokens_decoder().values())
    return prefixes if splits or short else 0


def _steps(state: Mapping[str, Any] | None, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of a normalizer or pre-tokenizer, at any depth.

    state: its JSON object; None if the tokenizer has no such component. name: member of a `Sequence` that has its
        parts.
    """
    if state is None:
        return
    if state["type"] == "Sequence":
        for step in state[name]:
            yield from _steps(step, name)
    else:
        yield state


def _state(component: Any) -> Mapping[str, Any] | None:
    """Return the JSON object of a normalizer or pre-tokenizer in `tokenizer.json`; None for a missing component."""
    if component is None:
        return None
    found: Mapping[str, Any] = json.loads(component.__getstate__())
    return found
