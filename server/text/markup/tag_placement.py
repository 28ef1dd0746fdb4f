"""Put the inline tags of a sentence into its translation, by the alignment of source and target tokens.

An element goes around the words of the translation that attend most to the words it contained in the source. Elements
stay nested: a child is placed inside its parent, and siblings never overlap. An element whose words have no
counterpart is dropped, and its children move to its parent; an atom is never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from server.word_bounds import UNSPACED

MIN_MASS = 0.25
"""Smallest share of a single word's attention for which an element is placed around that word."""
_MIN_ATTENTION = 0.05
"""Minimum attention of a translated word on words of the source. A word with less is not aligned: nearly all of its
attention is on special tokens."""
_UNIT = re.compile(r"\w+|[^\w\s]")

Span = tuple[int, int]


@dataclass(frozen=True)
class TokenAlignment:
    """Attention of the tokens of a translation over the tokens of its source.

    source, target: place of each token in its text; (0, 0) for special tokens.
    weights: [target tokens, source tokens].
    """

    source: Sequence[Span]
    target: Sequence[Span]
    weights: npt.NDArray[np.float32]


@dataclass
class InlineTag:
    """An inline element of a sentence, or an atom: markup that is kept as it is.

    start, end: place in the sentence.
    opening, closing: tags as they are written; for an atom, all of it and an empty string.
    """

    start: int
    end: int
    opening: str
    closing: str = ""
    is_atom: bool = False
    children: list[InlineTag] = field(default_factory=list)


@dataclass(frozen=True)
class _Placed:
    """A tag around the units (words and punctuation marks) [first, last) of the translation.

    An atom without text has first == last.
    """

    first: int
    last: int
    tag: InlineTag
    inner: list[_Placed]


def place_tags(
    translation: str,
    source: str,
    tags: Sequence[InlineTag],
    alignment: TokenAlignment | None,
    escape: Callable[[str], str],
) -> str:
    """The translation with the tags.

    source: the sentence that was translated. tags: its outermost inline elements and atoms.
    alignment: None where it is not known; then elements are dropped, and atoms are put at the end.
    escape: turns characters into markup.
    """
    placement = _Placement(translation, source, alignment)
    placed = placement.layout(tags, 0, len(placement.units))
    return "".join(_compose(placed, placement.units, translation, 0, len(translation), escape))


class _Placement:
    """The units (words and punctuation) of a translation, and how much each attends to any part of the source."""

    def __init__(self, translation: str, source: str, alignment: TokenAlignment | None) -> None:
        self.translation = translation
        self.source = source
        self.units = list(_units(translation, [start for start, _ in alignment.target] if alignment else []))
        self._mass = _cumulative_mass(self.units, len(source), alignment)

    def mass(self, start: int, end: int) -> npt.NDArray[np.float64]:
        """For each unit, the share of its attention that is on the characters [start, end) of the source."""
        return self._mass[:, end] - self._mass[:, start]

    def layout(self, tags: Sequence[InlineTag], first: int, last: int) -> list[_Placed]:
        """Place sibling tags within the units [first, last)."""
        waiting = list(reversed(tags))
        placed: list[_Placed] = []
        points: list[InlineTag] = []
        free = [(first, last)]
        while waiting:
            tag = waiting.pop()
            found = None
            if tag.end > tag.start:
                found = (self._occurrence(tag, free) if tag.is_atom else None) or self._best_range(tag, free)
            if found is None:
                if tag.is_atom:
                    points.append(tag)
                waiting += reversed(tag.children)
                continue
            placed.append(_Placed(*found, tag, self.layout(tag.children, *found)))
            free = [part for span in free for part in _without(span, found)]
        gaps = [gap for gap in range(first, last + 1) if not any(one.first < gap < one.last for one in placed)]
        for tag in points:
            wanted = self._gap(tag.start, first, last)
            gap = min(gaps, key=lambda gap: abs(gap - wanted))
            placed.append(_Placed(gap, gap, tag, []))
        return sorted(placed, key=lambda one: (one.first, one.last))

    def _best_range(self, tag: InlineTag, free: Sequence[Span]) -> Span | None:
        """The contiguous free units whose attention is mostly on the tag's text: the maximum sum of (mass - 1/2)."""
        mass = self.mass(tag.start, tag.end)
        best, best_sum = None, 0.0
        for first, last in free:
            start, total = first, 0.0
            for unit in range(first, last):
                if total <= 0:
                    start, total = unit, 0.0
                total += mass[unit] - 0.5
                if total > best_sum:
                    best, best_sum = (start, unit + 1), total
        if best is None:
            units = [unit for first, last in free for unit in range(first, last)]
            likeliest = max(units, key=lambda unit: mass[unit], default=None)
            if likeliest is not None and mass[likeliest] >= MIN_MASS:
                best = (likeliest, likeliest + 1)
        return best

    def _occurrence(self, tag: InlineTag, free: Sequence[Span]) -> Span | None:
        """Find where the text inside a tag stands unchanged in the translation, such as a name.

        Returns the units (words and punctuation marks) that spell it; None where it does not occur.

        If it occurs several times, the units with the most attention to the source text are chosen.
        """
        text = self.source[tag.start : tag.end].strip()
        starts = {start: unit for unit, (start, _) in enumerate(self.units)}
        ends = {end: unit + 1 for unit, (_, end) in enumerate(self.units)}
        found = []
        for match in re.finditer(re.escape(text), self.translation) if text else ():
            first, last = starts.get(match.start()), ends.get(match.end())
            if first is not None and last is not None and any(lo <= first and last <= hi for lo, hi in free):
                found.append((first, last))
        mass = self.mass(tag.start, tag.end)
        return max(found, key=lambda span: float(mass[span[0] : span[1]].sum()), default=None)

    def _gap(self, at: int, first: int, last: int) -> int:
        """Index of the unit before which an atom goes: the unit that attends most to the source word after the atom.

        at: place of the atom in the source. The result is `last` if no unit attends to that word.
        """
        following = _UNIT.search(self.source, at)
        if following is None or first == last:
            return last
        mass = self.mass(following.start(), following.end())[first:last]
        return first + int(mass.argmax()) if mass.max() > 0 else last


def _without(span: Span, taken: Span) -> Iterator[Span]:
    """The parts of a span outside another one."""
    if taken[1] <= span[0] or span[1] <= taken[0]:
        yield span
        return
    if span[0] < taken[0]:
        yield span[0], taken[0]
    if taken[1] < span[1]:
        yield taken[1], span[1]


def _units(text: str, token_starts: Sequence[int]) -> Iterator[Span]:
    """Words and punctuation marks of a text. Scripts without spaces are cut where a token begins."""
    cuts = sorted({start for start in token_starts if UNSPACED.match(text, start)})
    for match in _UNIT.finditer(text):
        inside = [cut for cut in cuts if match.start() < cut < match.end()] if cuts else []
        edges = [match.start(), *inside, match.end()]
        yield from pairwise(edges)


def _cumulative_mass(
    units: Sequence[Span], characters: int, alignment: TokenAlignment | None
) -> npt.NDArray[np.float64]:
    """[units, characters + 1]: share of a unit's attention on the characters of the source before each place."""
    mass = np.zeros((len(units), characters + 1))
    if alignment is None or not units:
        return mass
    spread = np.zeros((len(alignment.source), characters))
    for token, (start, end) in enumerate(alignment.source):
        if end > start:
            spread[token, start:end] = 1 / (end - start)
    rows = alignment.weights.astype(np.float64) @ spread
    starts = [start for start, _ in units]
    for (start, end), row in zip(alignment.target, rows, strict=True):
        for unit in range(max(0, int(np.searchsorted(starts, start, "right")) - 1), len(units)):
            if units[unit][0] >= end:
                break
            if units[unit][1] > start:
                mass[unit, 1:] += row
    totals = mass.sum(1, keepdims=True)
    shares = np.divide(mass, totals, out=np.zeros_like(mass), where=totals >= _MIN_ATTENTION)
    cumulative: npt.NDArray[np.float64] = shares.cumsum(1)
    return cumulative


def _compose(
    placed: Sequence[_Placed], units: Sequence[Span], text: str, at: int, end: int, escape: Callable[[str], str]
) -> Iterator[str]:
    """The characters [at, end) of the translation with the tags placed in them."""
    for one in placed:
        start = units[one.first][0] if one.first < len(units) else end
        start = min(max(start, at), end)
        yield escape(text[at:start])
        stop = units[one.last - 1][1] if one.last > one.first else start
        yield one.tag.opening
        if not one.tag.is_atom:
            yield from _compose(one.inner, units, text, start, stop, escape)
            yield one.tag.closing
        at = stop
    yield escape(text[at:end])
