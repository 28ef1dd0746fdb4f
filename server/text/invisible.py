"""Characters without a shape, such as soft hyphens. A translation is made without them.

Web pages, books and word processors have them inside words and between sentences. A tokenizer divides a word at such a
character, and no sentence ends where one follows the full stop. The two joiners (U+200C, U+200D) are letters of some
languages and parts of emoji, so they stay.
"""

from __future__ import annotations

import re

from server.text.windowed_search import WINDOW

INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]")
"""Soft hyphen, zero-width space, word joiner, byte order mark, and the marks and controls of writing direction."""


def without_invisible(text: str) -> str:
    """Remove the invisible characters of a text."""
    if text.isascii():
        return text
    return "".join([INVISIBLE.sub("", text[at : at + WINDOW]) for at in range(0, len(text), WINDOW)])
