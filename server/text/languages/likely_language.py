"""Guess the language of a text from its letters and its most frequent words, where a wrong guess is worse than none.

Splitting a text into sentences needs the abbreviations of its language. The detection of languages for requests
(`detect.py`) runs in a process of its own, and always names a language.
"""

from __future__ import annotations

import re

from server.text.languages.frequent_words import frequent_word_counts

_READ_CHARACTERS = 2_000
"""Number of characters at the beginning of a text that are read."""
_MIN_WORDS = 3
"""Least number of different frequent words of the language, which must be twice as many as of any other."""
_LATIN = re.compile("[A-Za-z\u00c0-\u024f]")
_SCRIPTS = {"el": re.compile("[\u0370-\u03ff\u1f00-\u1fff]"), "ja": re.compile("[\u3041-\u30ff]")}
"""Letters that one language alone has, for languages whose sentences end differently than in most languages."""


def likely_language(text: str) -> str:
    """Return the ISO 639-1 code of a text's language; empty if it is uncertain, as between Danish and Norwegian."""
    start = text[:_READ_CHARACTERS]
    for code, letters in _SCRIPTS.items():
        if len(letters.findall(start)) > len(_LATIN.findall(start)):
            return code
    counts = sorted(((count, code) for code, count in frequent_word_counts(start).items()), reverse=True)
    (most, likeliest), (second, _) = counts[0], counts[1]
    return likeliest if most >= _MIN_WORDS and most >= 2 * second else ""
