"""Typographic characters that a tokenizer does not know, and the plain characters to read in their place.

Word processors write curved quotation marks and dashes. The training texts of many translation models were normalized
first (Moses: `normalize-punctuation.perl`), so that their vocabularies have only straight ones. Such a model reads a
curved apostrophe as the unknown token, and often translates the whole sentence wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping

from server.text.tokens.tokenizer import Tokenizer

_TYPOGRAPHIC = {
    "'": "‘’‚‛´`ʼ′‹›",
    '"': "“”„‟«»″",
    "-": "‐‑‒–—―−",
    ".": "…",
}
"""Plain characters, and the typographic ones that stand for them."""


def plain_characters(tokenizer: Tokenizer) -> Mapping[int, str]:
    """Return a table for `str.translate` with the typographic characters that the tokenizer reads as unknown.

    Its values are plain characters that it knows. Empty for a tokenizer without an unknown token. The length of a text
    does not change.
    """
    unknown = tokenizer.special.unk
    if unknown is None:
        return {}

    def is_known(character: str) -> bool:
        (encoding,) = tokenizer.encode([character], add_special_tokens=False, offsets=False)
        return unknown not in encoding.ids

    return {
        ord(character): plain
        for plain, characters in _TYPOGRAPHIC.items()
        for character in characters
        if not is_known(character) and is_known(plain)
    }
