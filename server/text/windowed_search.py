"""Search long texts with a regular expression in windows, because one search holds Python's global lock to its end.

A search of a million characters for the protected parts of a text takes a second, in which no other thread runs. The
event loop releases the lock in each system call, and has to wait for the end of a window to get it back.
"""

from __future__ import annotations

import re

WINDOW = 1 << 11
"""Characters that one search reads: about 0.6 ms, and 2 ms with the slowest expression.

If the longest match takes more than half of them, one search reads twice its length.
"""


def search(pattern: re.Pattern[str], text: str, start: int = 0, longest: int = 1 << 12) -> re.Match[str] | None:
    """Find the first match at or after an index. Equal to `pattern.search(text, start)` for most expressions.

    start: index of the first character that may match.
    longest: a match of up to this many characters is found, wherever it is. A longer one may be missed if the text
        after `start` has more than a window, or another alternative of the expression matches in its place.
    """
    window = max(WINDOW, 2 * longest)
    while True:
        end = start + window
        match = pattern.search(text, start, end)
        if end >= len(text):
            return match
        if match is None:
            start = end - longest  # the end of the window may have cut a match that begins in its last part
        elif match.start() > end - longest:
            start = match.start()
        else:
            return pattern.match(text, match.start()) if match.end() == end else match


def count_characters(pattern: re.Pattern[str], text: str) -> int:
    """Count the matches of an expression that matches single characters, such as `[a-z]`."""
    return sum(len(pattern.findall(text, at, at + WINDOW)) for at in range(0, len(text), WINDOW))
