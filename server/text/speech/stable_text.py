"""Text of speech that is still being spoken: which words of the newest hypothesis are certain to stay.

A hypothesis is the text of the audio so far. Words on which two consecutive hypotheses agree are stable, as tokens are
on which all beams agree. Stable text is never taken back: a later hypothesis only says what follows it.
Source: Liu et al. 2020, arXiv:2005.11185, section 3 (local agreement).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNIT = re.compile(r"\s*(?:[぀-ヿ㐀-鿿豈-﫿]|[^\s぀-ヿ㐀-鿿豈-﫿]+)")
"""A word with the space before it. A character of Chinese or Japanese is a word."""
_UNSPACED = re.compile(r"[぀-ヿ㐀-鿿豈-﫿]")
_COMPARED_UNITS = 48
"""Stable words whose place is looked for in a hypothesis that begins with other words."""
_PUNCTUATION = " \t\n.,;:!?…\"'()[]-–—。、，！？"


class StableText:
    """The text of one turn: the words that are stable, and the rest of the newest hypothesis."""

    def __init__(self) -> None:
        self._stable: list[str] = []
        self._rest: list[str] = []

    @property
    def text(self) -> str:
        """The stable text."""
        return "".join(self._stable).strip()

    @property
    def rest(self) -> str:
        """The words of the newest hypothesis after the stable text, with the space between them."""
        rest = "".join(self._rest)
        return rest if self._stable else rest.lstrip()

    def add(self, hypothesis: str) -> str:
        """Take the text of the audio so far. Returns what the stable text grows by."""
        rest = self._after_stable(_units(hypothesis))
        agreed = 0
        while agreed < min(len(rest), len(self._rest)) and rest[agreed] == self._rest[agreed]:
            agreed += 1
        return self._grow(rest, agreed)

    def finish(self, text: str) -> str:
        """Take the text of the whole turn, which is stable. Returns what the stable text grows by."""
        rest = self._after_stable(_units(text))
        return self._grow(rest, len(rest))

    def _grow(self, rest: list[str], count: int) -> str:
        added = "".join(rest[:count])
        added = added if self._stable else added.lstrip()
        self._stable += rest[:count]
        self._rest = rest[count:]
        return added

    def _after_stable(self, units: list[str]) -> list[str]:
        """The words of a hypothesis after those that are stable."""
        count = len(self._stable)
        if units[:count] == self._stable:
            return units[count:]
        skipped = max(0, count - _COMPARED_UNITS)
        stable, found = self._stable[skipped:], units[skipped:]
        rest = found[_nearest_prefix([*map(_key, stable)], [*map(_key, found)]) :]
        # The first word of a text has no space before it.
        return [" " + rest[0], *rest[1:]] if rest and is_spaced(self.text, rest[0]) else rest


def is_spaced(before: str, after: str) -> bool:
    """Whether a space belongs between two texts that have none there."""
    if not before or not after or after[0].isspace():
        return False
    return not (_UNSPACED.match(before[-1]) or _UNSPACED.match(after[0]) or after[0] in _PUNCTUATION)


def _units(text: str) -> list[str]:
    return [match[0] for match in _UNIT.finditer(text.strip())]


def _key(unit: str) -> str:
    """A word as it is compared with others: without punctuation and upper case."""
    return unit.strip(_PUNCTUATION).lower()


def _nearest_prefix(wanted: Sequence[str], units: Sequence[str]) -> int:
    """Length of the beginning of `units` with the least edit distance to `wanted`.

    Of beginnings with equal distances, the one whose length is nearest to that of `wanted`.
    """
    row = list(range(len(units) + 1))
    for index, word in enumerate(wanted):
        diagonal, row[0] = row[0], index + 1
        for place, unit in enumerate(units):
            best = min(row[place] + 1, row[place + 1] + 1, diagonal + (word != unit))
            diagonal, row[place + 1] = row[place + 1], best
    return min(range(len(row)), key=lambda length: (row[length], abs(length - len(wanted))))
