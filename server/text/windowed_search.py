"""Search long texts with a regular expression in windows, because one search holds Python's global lock to its end.

A search of a million characters for the protected parts of a text takes a second, in which no other thread runs.
"""

from __future__ import annotations

import re

WINDOW = 1 << 14
"""Characters that one search reads: about 15 ms with the slowest expression."""


def search(pattern: re.Pattern[str], text: str, start: int = 0, longest: int = 1 << 12) -> re.Match[str] | None:
    """Find the first match at or after an index. Equal to `pattern.search(text, start)` for most expressions.

    start: index of the first character that may match.
    longest: a match of up to this many characters is found, wherever it is. A longer one may be missed if the text
        after `start` has more than `WINDOW` characters, or another alternative of the expression matches in its place.
        Less than `WINDOW`.
    """
    while True:
        end = start + WINDOW
        match = pattern.search(text, start, end)
        if end >= len(text):
            return match
        if match is None:
            start = end - longest  # the end of the window may have cut a match that begins in its last part
        elif match.start() > end - longest:
            start = match.start()
        else:
            return pattern.match(text, match.start()) if match.end() == end else match
