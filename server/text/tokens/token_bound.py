"""Bound the number of tokens that a text can have, from its characters and without tokenizing it.

A tokenizer first normalizes a text, which may replace a character by several (Unicode Standard Annex 15). Then each
character becomes at most one token, or each byte of UTF-8 if the tokenizer has tokens for single bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as LibraryTokenizer

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
    characters, size, replacements = 1, 4, 1
    spaces = "\N{LOWER ONE EIGHTH BLOCK}"
    for step in _steps(_state(tokenizer.normalizer), "normalizers"):
        kind = step["type"]
        if kind == "Replace":
            matched = len(step["pattern"].get("String", "")) or 1
            replacements *= max(1, -(-len(step["content"]) // matched))
        elif kind in _FORM_OF:
            growth = _GROWTH[_FORM_OF[kind]]
            characters, size = max(characters, growth[0]), max(size, growth[1])
        elif kind not in _NEUTRAL:
            return TokenBound()
    parts = list(_steps(_state(tokenizer.pre_tokenizer), "pretokenizers"))
    kinds = {step["type"] for step in parts}
    has_bytes = "ByteLevel" in kinds or bool(getattr(tokenizer.model, "byte_fallback", False))
    if has_bytes and "ByteLevel" not in kinds and tokenizer.token_to_id(spaces) is None:
        return TokenBound()
    more = _puts_space_before_characters(tokenizer, parts)
    other = size if has_bytes else characters
    longest = other
    if characters == _GROWTH["NFKC"][0]:
        longest = LONGEST_BYTES if has_bytes else 18
    return TokenBound(*(replacements * (most + more) for most in (1, other, longest)))


def _puts_space_before_characters(tokenizer: LibraryTokenizer, parts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a single character may get a space before it, which can become a token of its own.

    Spaces are put before sections between added tokens, and before the parts that another pre-tokenizer has split.
    """
    prefixes = any(
        step.get("add_prefix_space") or step.get("prepend_scheme", "never") != "never" for step in parts
    ) or any(step["type"] == "Prepend" for step in _steps(_state(tokenizer.normalizer), "normalizers"))
    splits = {step["type"] for step in parts} - {"ByteLevel", "Metaspace", "WhitespaceSplit"}
    short = any(len(token.content) < 2 for token in tokenizer.get_added_tokens_decoder().values())
    return prefixes and (bool(splits) or short)


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
