"""Where words begin and end, for terms that are matched as whole words. Imports nothing of the server."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")
"""A character of a script that puts no spaces between words: Thai, Lao, Burmese, Khmer, Japanese or Chinese."""


@lru_cache(4096)
def is_word_character(character: str) -> bool:
    """Whether a character is a letter, digit, underscore or combining mark of a script that separates words."""
    if UNSPACED.match(character):
        return False
    return character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")


def are_joined(before: str, after: str) -> bool:
    """Whether two neighbouring characters belong to one word."""
    return is_word_character(before) and is_word_character(after)


def spellings(term: str) -> list[str]:
    """Return the spellings that a term may have in a text: as it is written, and with a capital first letter.

    Only one spelling if the first letter has no other upper case.
    """
    capital = term[:1].upper()
    return [term] if capital == term[:1] or len(capital) != 1 else [term, capital + term[1:]]
