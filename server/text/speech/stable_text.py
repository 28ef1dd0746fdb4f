"""Transcribe live speech: decide which words of the newest transcript are final.

A hypothesis is the transcript of the audio so far. Words on which two consecutive hypotheses agree are stable. Stable
text never changes: a later hypothesis only adds the words after it.
Source: Liu et al. 2020, arXiv:2005.11185, section 3 (local agreement).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNIT = re.compile(r"\s*(?:[぀-ヿ㐀-鿿豈-﫿]|[^\s぀-ヿ㐀-鿿豈-﫿]+)")
"""A word with the space before it. Each Chinese or Japanese character counts as a word."""
_UNSPACED = re.compile(r"[぀-ヿ㐀-鿿豈-﫿]")
_COMPARED_UNITS = 48
"""Number of the last stable words that are compared with a hypothesis that does not begin with the stable text."""
_PUNCTUATION = " \t\n.,;:!?…\"'()[]-–—。、，！？"


class StableText:
    """The transcript of one turn: the words that are stable, and the remaining words of the newest hypothesis."""

    def __init__(self) -> None:
        self._stable: list[str] = []
        self._rest: list[str] = []

    @property
    def text(self) -> str:
        """The stable text, without white space around it."""
        return "".join(self._stable).strip()

    @property
    def rest(self) -> str:
        """The words of the newest hypothesis after the stable text, with the space between them."""
        rest = "".join(self._rest)
        return rest if self._stable else rest.lstrip()

    def add(self, hypothesis: str) -> str:
        """Take a new transcript of the audio so far. Returns the text that became stable."""
        rest = self._after_stable(_units(hypothesis))
        agreed = 0
        while agreed < min(len(rest), len(self._rest)) and rest[agreed] == self._rest[agreed]:
            agreed += 1
        return self._grow(rest, agreed)

    def finish(self, text: str) -> str:
        """Take the transcript of the whole turn, all of which is stable. Returns the text that became stable."""
        rest = self._after_stable(_units(text))
        return self._grow(rest, len(rest))

    def _grow(self, rest: list[str], count: int) -> str:
        added = "".join(rest[:count])
        added = added if self._stable else added.lstrip()
        self._stable += rest[:count]
        self._rest = rest[count:]
        return added

    def _after_stable(self, units: list[str]) -> list[str]:
        """Return the words of a hypothesis that follow the stable text. units: all words of the hypothesis.

        If the hypothesis does not begin with the stable words, its most similar beginning is taken for them.
        """
        count = len(self._stable)
        if units[:count] == self._stable:
            return units[count:]
        skipped = max(0, count - _COMPARED_UNITS)
        stable, found = self._stable[skipped:], units[skipped:]
        rest = found[_nearest_prefix([*map(_key, stable)], [*map(_key, found)]) :]
        # The first word of a text has no space before it.
        return [" " + rest[0], *rest[1:]] if rest and is_spaced(self.text, rest[0]) else rest


def is_spaced(before: str, after: str) -> bool:
    """Whether a space must be put between two texts. Not beside Chinese or Japanese, or before punctuation."""
    if not before or not after or after[0].isspace():
        return False
    return not (_UNSPACED.match(before[-1]) or _UNSPACED.match(after[0]) or after[0] in _PUNCTUATION)


def _units(text: str) -> list[str]:
    return [match[0] for match in _UNIT.finditer(text.strip())]


def _key(unit: str) -> str:
    """Return a word in the form in which words are compared: lower case, without punctuation around it."""
    return unit.strip(_PUNCTUATION).lower()


def _nearest_prefix(wanted: Sequence[str], units: Sequence[str]) -> int:
    """Length of the prefix of `units` that has the least edit distance to `wanted`.

    Of prefixes with equal distances, the one whose length is nearest to the length of `wanted`.
    """
    row = list(range(len(units) + 1))
    for index, word in enumerate(wanted):
        diagonal, row[0] = row[0], index + 1
        for place, unit in enumerate(units):
            best = min(row[place] + 1, row[place + 1] + 1, diagonal + (word != unit))
            diagonal, row[place + 1] = row[place + 1], best
    return min(range(len(row)), key=lambda length: (row[length], abs(length - len(wanted))))
