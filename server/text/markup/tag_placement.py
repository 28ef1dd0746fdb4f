"""Put the inline tags of a sentence into its translation, by the alignment of source and target tokens.

An element goes around the words of the translation that attend most to the words that it contained in the source.
Elements stay nested: a child is placed inside its parent, and siblings never overlap. An element to whose text no word
attends goes around a word that no other element has, next to the words that attend to its neighbours in the source. If
there is no such word, the element stays without text, between two words.

An atom (content that must not change) is never dropped. An element without letters, such as a footnote mark, keeps its
text. An atom whose text is not in the translation stands between two words, never inside one, with the white space
that it had in the source. Line breaks keep their order.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from server.text.markup.placed_tags import InlineTag, PlacedTag, Span, compose, with_breaks_in_order
from server.text.markup.unit_attention import TokenAlignment, UnitAttention
from server.word_bounds import UNSPACED, is_word_character

MIN_MASS = 0.25
"""Least share of a word's attention on an element's text for which the element may go around this single word."""
_WORD = re.compile(r"\w+(?:[’'.,:\-‐‑/·]\w+)*")
"""A word with the marks inside it: J'ai, well-known, 3.5."""
_SAME_MARK = 0.5
"""Score that a gap in the translation gets if the punctuation mark beside it is beside the atom in the source.

It counts twice if there is no white space between the mark and the atom.
"""
_UNIT = re.compile(r"\w+|[^\w\s]")


def proportional_alignment(source: str, target: str) -> TokenAlignment:
    """Align the words of a text and its translation by equal words and by order, without attention weights.

    Words that occur exactly once in both texts, such as names and numbers, are aligned if they keep their order.
    Between them, each word of the translation is aligned with the source word at the proportional position.
    """
    words = [[match.span() for match in _UNIT.finditer(text)] for text in (source, target)]
    weights = np.zeros((len(words[1]), len(words[0])), np.float32)
    if words[0] and words[1]:
        anchors = [
            (0.0, 0.0),
            *_anchors(source, target, words[0], words[1]),
            (float(len(words[0])), float(len(words[1]))),
        ]
        centers = np.interp(
            np.arange(len(words[1])) + 0.5, [anchor[1] for anchor in anchors], [anchor[0] for anchor in anchors]
        )
        for row, center in enumerate(centers):
            weights[row, min(int(center), len(words[0]) - 1)] = 1
    return TokenAlignment(words[0], words[1], weights)


def _anchors(source: str, target: str, read: Sequence[Span], written: Sequence[Span]) -> list[tuple[float, float]]:
    """Find words that are the same in both texts: the longest sequence, in one order, of words that occur only once.

    read, written: (start, end) of the words in the source and in the target.
    Returns (position in the source, position in the target) for the middle of each word, counted in words.
    """
    texts = [[text[slice(*span)].casefold() for span in spans] for text, spans in ((source, read), (target, written))]
    counts = [Counter(own) for own in texts]
    places = {word: place for place, word in enumerate(texts[1])}
    pairs = [
        (place, places[word])
        for place, word in enumerate(texts[0])
        if word[0].isalnum() and counts[0][word] == 1 and counts[1][word] == 1
    ]
    # Longest increasing subsequence of the target places.
    ends: list[int] = []
    before: list[int] = []
    last: list[int] = []
    for index, (_, place) in enumerate(pairs):
        at = bisect_left(ends, place)
        before.append(last[at - 1] if at else -1)
        ends[at : at + 1] = [place]
        last[at : at + 1] = [index]
    chosen: list[int] = []
    index = last[-1] if last else -1
    while index >= 0:
        chosen.append(index)
        index = before[index]
    return [(pairs[index][0] + 0.5, pairs[index][1] + 0.5) for index in reversed(chosen)]


def place_tags(
    translation: str,
    source: str,
    tags: Sequence[InlineTag],
    alignment: TokenAlignment | None,
    escape: Callable[[str], str],
) -> str:
    """Return a translation as markup, with the tags of the source.

    source: the sentence that was translated, without tags. tags: its outermost inline elements and atoms.
    alignment: attention of the translation on the source. None if it is not known: then elements with letters are
        without text. They and the atoms whose text is not in the translation stay at the start, or are put at the end.
    escape: turns characters into markup.
    """
    if not tags:
        return escape(translation)
    placement = _Placement(translation, source, alignment, escape)
    placed = with_breaks_in_order(placement.layout(tags, 0, len(placement.units)), tags)
    return "".join(compose(placed, placement.units, translation, 0, len(translation), escape))


class _Placement:
    """Decides where tags go in a translation.

    Holds the units (words and punctuation marks) of the translation, and the attention of each unit on the source.
    """

    def __init__(
        self, translation: str, source: str, alignment: TokenAlignment | None, escape: Callable[[str], str]
    ) -> None:
        self._escape = escape
        self.translation = translation
        self.source = source
        self.units = list(_units(translation, [start for start, _ in alignment.target] if alignment else []))
        self._attention = UnitAttention(self.units, alignment) if alignment else None

    @cached_property
    def _inner_gaps(self) -> frozenset[int]:
        return _inner_gaps(self.translation, self.units)

    def mass(self, start: int, end: int) -> list[float]:
        """For each unit, the share (0 to 1) of its attention that is on the characters [start, end) of the source."""
        return [0.0] * len(self.units) if self._attention is None else self._attention.shares(start, end)

    def layout(self, tags: Sequence[InlineTag], first: int, last: int) -> list[PlacedTag]:
        """Place sibling tags, and the tags inside them, among the words and marks [first, last) of the translation.

        Returns them in order.
        """
        waiting = list(reversed(tags))
        placed: list[PlacedTag] = []
        points: list[InlineTag] = []
        free = [(first, last)]
        while waiting:
            tag = waiting.pop()
            found = None
            if tag.end > tag.start:
                found = self._occurrence(tag, free) if tag.is_atom else None
                found = found or self._best_range(tag, free)
                if tag.is_atom and found and not self._are_words(found):
                    found = None
            if found is None and not tag.is_atom and tag.end > tag.start:
                if not tag.children and not any(map(str.isalpha, self.source[tag.start : tag.end])):
                    points.append(self._as_atom(tag))
                    continue
                found = self._neighbour(tag, free)
            if found is None:
                points.append(tag)
                continue
            placed.append(PlacedTag(*found, tag, self.layout(tag.children, *found)))
            free = [part for span in free for part in _without(span, found)]
        if points:
            gaps = [
                gap
                for gap in range(first, last + 1)
                if not any(placed_tag.first < gap < placed_tag.last for placed_tag in placed)
            ]
            borders = [gap for gap in gaps if gap not in self._inner_gaps] or gaps
            atoms = [there.tag for there in placed if there.tag.is_atom]
            in_order = sorted([*points, *atoms], key=lambda tag: tag.start)
            ranges = {id(there.tag): (there.first, there.last) for there in placed}
            for before, tag, after in zip([None, *in_order], in_order, [*in_order[1:], None], strict=False):
                if id(tag) in ranges:
                    continue
                lowest, highest = borders[0], borders[-1]
                if before is not None and self._are_neighbours(before, tag):
                    lowest = ranges[id(before)][1]
                if after is not None and id(after) in ranges and self._are_neighbours(tag, after):
                    highest = ranges[id(after)][0]
                between = borders[bisect_left(borders, lowest) : bisect_right(borders, highest)]
                gap = self._gap(tag, between or borders)
                ranges[id(tag)] = gap, gap
            breaks = [tag for tag in in_order if tag.is_break]
            ranges |= zip(map(id, breaks), sorted(ranges[id(tag)] for tag in breaks), strict=True)
            placed_tags = {id(there.tag) for there in placed}
            placed += [
                PlacedTag(*ranges[id(tag)], tag, self.layout(tag.children, *ranges[id(tag)]), *self._touched_words(tag))
                for tag in in_order
                if id(tag) not in placed_tags
            ]
        return sorted(placed, key=lambda placed_tag: (placed_tag.first, placed_tag.last))

    def _are_neighbours(self, tag: InlineTag, next_tag: InlineTag) -> bool:
        """Whether at most one word stands between two tags, as in a list. Without text, such tags keep their order."""
        return len(_WORD.findall(self.source, tag.end, next_tag.start)) <= 1

    def _touched_words(self, tag: InlineTag) -> tuple[bool, bool]:
        """Whether a tag touches the word before it and the word after it in the source."""
        before, after = self.source[: tag.start][-1:], self.source[tag.end : tag.end + 1]
        return (
            not tag.space_before and bool(before) and is_word_character(before),
            not tag.space_after and bool(after) and is_word_character(after),
        )

    def _are_words(self, span: Span) -> bool:
        """Whether a range of units begins and ends between words, and not at a mark inside a word (an apostrophe)."""
        return span[0] not in self._inner_gaps and span[1] not in self._inner_gaps

    def _best_range(self, tag: InlineTag, free: Sequence[Span]) -> Span | None:
        """Return the range of units whose attention is mostly on the tag's text; None if no unit has enough.

        The range has the largest sum of (share of attention - 1/2). If no unit reaches 1/2, it is the single unit with
        the largest share, from `MIN_MASS` on.

        free: ranges of units that have no tag yet.
        """
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

    def _neighbour(self, tag: InlineTag, free: Sequence[Span]) -> Span | None:
        """Return a word for an element to whose text no word attends; None if no word beside the gap is free.

        The word is beside the gap whose neighbours attend most to the source words around the element.

        free: ranges of units that have no tag yet.
        """
        gaps = sorted({gap for first, last in free for gap in range(first, last + 1)} - self._inner_gaps)
        if self._attention is None or not gaps:
            return None
        gap = self._gap(tag, gaps)
        return next(
            (
                (unit, unit + 1)
                for unit in (gap, gap - 1)
                if any(first <= unit < last for first, last in free) and self.translation[self.units[unit][0]].isalnum()
            ),
            None,
        )

    def _as_atom(self, tag: InlineTag) -> InlineTag:
        """Turn an element and its source text into an atom, so that both are written unchanged."""
        text, before, after = self.source[tag.start : tag.end], self.source[: tag.start], self.source[tag.end :]
        written = tag.opening + self._escape(text) + tag.closing
        spaces = not before or before[-1].isspace(), not after or after[0].isspace()
        return InlineTag(tag.start, tag.end, written, "", True, [], *spaces)

    def _occurrence(self, tag: InlineTag, free: Sequence[Span]) -> Span | None:
        """Find an atom's source text in the translation, where it often stands unchanged, as a name does.

        Returns the range of units that spell the text; None if it does not occur. Of several occurrences, the one
        with the most attention on the source text is taken.

        free: ranges of units that have no tag yet.
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
        return max(found, key=lambda span: sum(mass[span[0] : span[1]]), default=None)

    def _gap(self, tag: InlineTag, gaps: Sequence[int]) -> int:
        """Choose the gap between two units in which a tag without text goes. Gap n is before unit n.

        The chosen gap is the one whose neighbouring units attend most to the source words before and after the tag.
        The source word that the tag touches counts more; if it touches none, the following word counts more. A tag
        at an end of the sentence stays there.

        gaps: the gaps to choose from, ascending.
        """
        words = list(_UNIT.finditer(self.source))
        following = next((word for word in words if word.start() >= tag.end), None)
        preceding = next((word for word in reversed(words) if word.end() <= tag.start), None)
        if following is None or preceding is None or len(gaps) == 1:
            return gaps[-1] if following is None else gaps[0]
        if self._attention is None:
            return gaps[-1]
        after, before = (self.mass(word.start(), word.end()) for word in (following, preceding))
        touches_before = not tag.space_before and tag.space_after
        weights = (0.5, 1.0) if touches_before else (1.0, 0.5)
        scores = {
            gap: weights[0] * (after[gap] if gap < len(after) else 0) + weights[1] * (before[gap - 1] if gap else 0)
            for gap in gaps
        }
        for word, offset, is_spaced in ((following, 0, tag.space_after), (preceding, -1, tag.space_before)):
            if not word[0][0].isalnum():
                same_mark = _SAME_MARK if is_spaced else 2 * _SAME_MARK
                for gap in gaps:
                    unit = self.units[gap + offset] if 0 <= gap + offset < len(self.units) else (0, 0)
                    scores[gap] += same_mark * (self.translation[slice(*unit)] == word[0])
        return max(gaps, key=lambda gap: scores[gap])


def _without(span: Span, taken: Span) -> Iterator[Span]:
    """Yield the parts of a span that are not in the span `taken`."""
    if taken[1] <= span[0] or span[1] <= taken[0]:
        yield span
        return
    if span[0] < taken[0]:
        yield span[0], taken[0]
    if taken[1] < span[1]:
        yield taken[1], span[1]


def _units(text: str, token_starts: Sequence[int]) -> Iterator[Span]:
    """Yield (start, end) of the words and punctuation marks of a text.

    Text in scripts without spaces between words is also cut where a token begins. token_starts: character indices.
    """
    cuts = sorted({start for start in token_starts if UNSPACED.match(text, start)}) if UNSPACED.search(text) else []
    for match in _UNIT.finditer(text):
        inside = [cut for cut in cuts if match.start() < cut < match.end()] if cuts else []
        edges = [match.start(), *inside, match.end()]
        yield from pairwise(edges)


def _inner_gaps(text: str, units: Sequence[Span]) -> frozenset[int]:
    """Return the gaps that are inside a word, beside its apostrophe, hyphen or decimal separator.

    Gap n is before unit n, a word or punctuation mark.
    """
    by_start = {start: unit for unit, (start, _) in enumerate(units)}
    found = set()
    for word in _WORD.finditer(text):
        for place in range(word.start() + 1, word.end()):
            if place in by_start and not (text[place - 1].isalnum() and text[place].isalnum()):
                found.add(by_start[place])
    return frozenset(found)
