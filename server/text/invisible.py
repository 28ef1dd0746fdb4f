"""Characters without a shape, such as soft hyphens. A translation is made without them.

Web pages, books and word processors have them inside words and between sentences. A tokenizer divides a word at such a
character, and no sentence ends where one follows the full stop. The two joiners (U+200C, U+200D) are letters of some
languages and parts of emoji, so they stay.
"""

from __future__ import annotations

import re
from itertools import chain

from server.text.windowed_search import WINDOW

_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_JOINTS = (0x00AD, 0x180E, 0x200B, *range(0x2060, 0x2065), 0xFEFF)
INVISIBLE = frozenset(map(chr, chain(_DIRECTIONS, _JOINTS)))
"""Marks and controls of writing direction; soft hyphen, Mongolian separator, zero-width space, word joiner, invisible
operators, byte order mark."""
INVISIBLE_CLASS = f"[{''.join(sorted(INVISIBLE))}]"
"""The same characters as a class of a regular expression."""
_PATTERN = re.compile(INVISIBLE_CLASS)


def without_invisible(text: str) -> str:
    """Remove the invisible characters of a text."""
    if text.isascii():
        return text
    return "".join([_PATTERN.sub("", text[at : at + WINDOW]) for at in range(0, len(text), WINDOW)])
