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
    """Find the typographic characters that a tokenizer reads as its unknown token, each with a plain one that it knows.

    Returns a table for `str.translate`, which keeps the length of a text. Empty for a tokenizer without an unknown
    token.
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
