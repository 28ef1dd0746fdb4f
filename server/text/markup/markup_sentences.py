"""Divide the runs of a document into sentences with their inline tags, and write translated sentences as markup.

Tags around whole sentences stay where they are, between sentences. If an element begins in one sentence and ends in
another, the two are translated as one sentence; if that is too long for the model, the element's tags are dropped.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from server.text.invisible import INVISIBLE, INVISIBLE_CLASS
from server.text.markup.markup import InlineElement, TaggedText, parse
from server.text.markup.markup_options import MarkupOptions
from server.text.markup.markup_tokens import MarkupKind
from server.text.markup.placed_tags import InlineTag
from server.text.markup.tag_placement import place_tags
from server.text.markup.unit_attention import TokenAlignment

_SPACE = re.compile(r"[ \t\n\r\f]")
_NOT_PLAIN = re.compile(rf"[ \t\n\r\f]{{2}}|[\t\n\r\f]|{INVISIBLE_CLASS}")
"""White space that is not a single space between words, or an invisible character."""
_MARKS = ".,;:!?…"
_BULLETS = frozenset("•‣⁃◦▪▫●○■□◆◇►▶|¦·")
_HEARTS = frozenset("❤♥♡🧡💛💚💙💜🖤🤍🤎💕💖")
"""Symbols that stand for a verb, as in "I ❤ Paris"."""
_STAND_IN = "Xyzzy"
"""Word in place of a placeholder, while the ends of sentences are looked for."""
_SYMBOLS = re.compile("[^\\x00-\\u00a8]+")
_WORD = re.compile(r"\s*([^\W\d_]+)")
_BETWEEN, _DROPPED = -1, -2
"""Values in place of a slot's index, for tags that are in no sentence: written between sentences, or left out."""


@dataclass(frozen=True)
class MarkedSentence:
    """A sentence of a document.

    text: characters for the model, without tags and with white space collapsed.
    raw: characters in the document, with tags.
    tags: outermost inline tags inside the sentence.
    kind: kind of the document's markup.
    before, after: white space at the ends of the sentence, which inline tags may contain.
    separator: space to write after the translation, for a target language with spaces between sentences.
    """

    text: str
    raw: str
    tags: Sequence[InlineTag]
    kind: MarkupKind
    before: str = ""
    after: str = ""
    separator: str = ""

    def render(self, translation: str, alignment: TokenAlignment | None) -> str:
        """Return a translation as markup, with the sentence's tags. A translation equal to `text` gives `raw`.

        alignment: attention of the translation's tokens on the source; None if it is not known.
        """
        if translation == self.text:
            return self.raw + self.separator
        marked = place_tags(translation, self.text, self.tags, alignment, lambda text: escape(text, self.kind))
        return self.before + marked + self.after + self.separator


def escape(text: str, kind: MarkupKind) -> str:
    """Return characters as markup of this kind: `&`, `<`, `>` and no-break spaces become references."""
    if kind == "text":
        return text
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("\xa0", "&nbsp;" if kind == "html" else "&#160;")


def sentences(
    document: str,
    options: MarkupOptions,
    split: Callable[[str], Sequence[tuple[str, str]]],
    fits: Callable[[str], bool],
    is_frequent: Callable[[str], bool] = lambda word: False,
) -> list[str | MarkedSentence]:
    """Divide a document into sentences, and the markup between them (strings), in order.

    split: divides a text into (sentence, separator).
    fits: tells whether a text is short enough for the model.
    is_frequent: tells whether a word in lower case is an article, a pronoun or another word that begins sentences.
    Raises MarkupError for XML that is not well-formed, and for too many or too deeply nested tags.
    """
    found: list[str | MarkedSentence] = []
    for part in parse(document, options):
        if isinstance(part, str):
            found.append(part)
        else:
            found += _RunSentences(part, options, split, fits, is_frequent).parts()
    return found


class _RunSentences:
    """The sentences of one run: a text with inline markup.

    The run is divided into slots. Slots 1, 3, 5... are sentences; slots 0, 2, 4... are the markup between them.
    """

    def __init__(
        self,
        run: TaggedText,
        options: MarkupOptions,
        split: Callable[[str], Sequence[tuple[str, str]]],
        fits: Callable[[str], bool],
        is_frequent: Callable[[str], bool],
    ) -> None:
        self._run = run
        self._kind = options.kind
        text = run.text if options.split_at_newlines else _SPACE.sub(" ", run.text)
        own_text = _without_atoms(run)
        found = [span for span in _split(text, run, split) if own_text[span.start : span.end].strip()]
        self._spans = _widened(_joined(list(_cut_at_symbols(found, run, is_frequent)), run, fits), run)
        self._starts = [span.start for span in self._spans]
        self._ends = [span.end for span in self._spans]
        atoms = frozenset(
            element.start for element in run.elements.values() if element.is_atom and element.start == element.end
        )
        spaces = " \t" if options.kind == "text" else " \t\n\r\f"
        collapsed = [_collapse(run.text, span.start, span.end, spaces, atoms) for span in self._spans]
        self._texts, self._places = [text for text, _ in collapsed], [places for _, places in collapsed]
        self._tags: list[list[InlineTag]] = [[] for _ in self._spans]
        self._slots: dict[int, int] = {}  # slot of the tags of each element, by its id
        self._piece_of = {id(element): index for index, element in run.elements.items()}
        for root in run.roots:
            self._assign(root)

    def parts(self) -> list[str | MarkedSentence]:
        """Return the sentences and the markup between them (strings), in order."""
        raws: list[list[str]] = [[] for _ in range(2 * len(self._spans) + 1)]
        opened: list[int] = []
        at = 0
        for index, piece in enumerate(self._run.pieces):
            if piece.kind == "text":
                for start, end, slot in self._cut(at, at + len(piece.text)):
                    if piece.raw != piece.text:  # a character reference, such as &amp;
                        raws[slot].append(piece.raw)
                        break
                    raws[slot].append(piece.raw[start - at : end - at])
            else:
                slot = opened.pop() if piece.kind == "close" else self._slots[id(self._run.elements[index])]
                if piece.kind == "open":
                    opened.append(slot)
                if slot == _BETWEEN:
                    slot = 2 * bisect_right(self._ends, at)
                if slot != _DROPPED:
                    raws[slot].append(piece.raw)
            at += len(piece.text)
        found: list[str | MarkedSentence] = ["".join(raws[0])]
        for index, span in enumerate(self._spans):
            raw, text = "".join(raws[2 * index + 1]), self._run.text[span.start : span.end]
            before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
            whole = MarkedSentence(
                self._texts[index], raw, self._tags[index], self._kind, before, after, span.separator
            )
            found.append(whole)
            found.append("".join(raws[2 * index + 2]))
        return [part for part in found if part]

    def _slot(self, at: int) -> int:
        """Index of the slot that contains a character: odd inside a sentence, even between two sentences.

        at: index of the character in the run's text.
        """
        before = bisect_right(self._starts, at)
        return 2 * before - 1 if before and at < self._ends[before - 1] else 2 * before

    def _cut(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Cut the range [start, end) of the run's text where a sentence begins or ends. Yields (start, end, slot)."""
        while start < end:
            slot = self._slot(start)
            edges = self._ends if slot % 2 else self._starts
            edge = edges[slot // 2] if slot // 2 < len(edges) else end
            yield start, min(edge, end), slot
            start = edge

    def _assign(self, element: InlineElement) -> None:
        """Decide where the tags of an element and of its children go: into a sentence, between sentences, or nowhere.

        The decisions are stored in `_tags` and `_slots`.
        """
        first = bisect_right(self._ends, element.start)
        last = bisect_left(self._starts, element.end) - 1
        slot = _BETWEEN
        if first <= last:
            begins_inside = element.start > self._starts[first]
            ends_inside = element.end < self._ends[last]
            is_part = begins_inside or ends_inside or element.is_atom
            if first == last and element.start >= self._starts[first] and element.end <= self._ends[first] and is_part:
                self._tags[first].append(self._inline_tag(element, first))
                return
            if (begins_inside or ends_inside) and not element.is_atom:
                slot = _DROPPED
        elif element.is_atom and (sentence := self._touched_mark(element)) is not None:
            self._tags[sentence].append(self._inline_tag(element, sentence))
            return
        self._slots[id(element)] = slot
        for child in element.children:
            self._assign(child)

    def _touched_mark(self, element: InlineElement) -> int | None:
        """Index of the sentence whose first or last character is a mark that touches an atom, as in `{name}: yes`.

        Such an atom belongs to the sentence, because the translation may have a word there. None for line breaks
        and all other atoms.
        """
        at, pieces = element.start, self._run.pieces
        own = self._piece_of[id(element)]
        if pieces[own].is_break:
            return None
        sides = (
            (self._starts, pieces[own + 1 : own + 2], 0, element.space_after),
            (self._ends, pieces[max(0, own - 1) : own], -1, element.space_before),
        )
        for edges, neighbours, edge, is_spaced in sides:
            index = bisect_left(edges, at)
            is_edge = index < len(edges) and edges[index] == at == element.end and not is_spaced
            if is_edge and any(piece.kind == "text" and _is_mark(piece.text[edge:][:1]) for piece in neighbours):
                return index
        return None

    def _inline_tag(self, element: InlineElement, sentence: int) -> InlineTag:
        """Return an element and its children with character indices in the sentence instead of in the run.

        sentence: index of the sentence in the run.
        """
        self._slots[id(element)] = 2 * sentence + 1
        places = self._places[sentence]
        start, end = (places[at - self._starts[sentence]] for at in (element.start, element.end))
        children = [self._inline_tag(child, sentence) for child in element.children]
        return InlineTag(
            start,
            end,
            element.opening,
            element.closing,
            element.is_atom,
            children,
            element.space_before,
            element.space_after,
            element.shown,
        )


@dataclass(frozen=True)
class _SentenceSpan:
    """The place of a sentence in a run, which is a text with inline tags.

    start, end: range in the run's text, as character indices. separator: space to write after its translation.
    """

    start: int
    end: int
    separator: str


def _is_mark(character: str) -> bool:
    """Whether a character is a punctuation mark or another symbol. False for an empty text."""
    return bool(character) and not character.isalnum() and not character.isspace()


def _locate(text: str, split: Sequence[tuple[str, str]]) -> Iterator[_SentenceSpan]:
    """Find the ranges of the sentences into which a text was split. Between them are white space and invisible
    characters only.

    split: (sentence, separator) of each part, in order.
    """
    at = 0
    for sentence, separator in split:
        if sentence:
            start = text.index(sentence, at)
            at = start + len(sentence)
            yield _SentenceSpan(start, at, "" if text.startswith(separator, at) else separator)


def _split(text: str, run: TaggedText, split: Callable[[str], Sequence[tuple[str, str]]]) -> Iterator[_SentenceSpan]:
    """Split the text of a run, with a word in place of each placeholder or address: "Hello {name}. {n} are left."

    text: the run's text, possibly with other white space.
    """
    places = [element.start for element in run.elements.values() if _stands_for_word(element)]
    if not places:
        yield from _locate(text, split(text))
        return
    edges = [0, *places, len(text)]
    words = _STAND_IN.join([text[start:end] for start, end in pairwise(edges)])
    starts = [place + index * len(_STAND_IN) for index, place in enumerate(places)]

    def original(at: int) -> int:
        """Return the index in the text of a character of `words`; that of the placeholder for one in a stand-in."""
        before = bisect_right(starts, at)
        return max(places[before - 1], at - before * len(_STAND_IN)) if before else at

    for span in _locate(words, split(words)):
        start, end = original(span.start), original(span.end)
        inside = text[start:end]
        yield replace(span, start=end - len(inside.lstrip()), end=start + len(inside.rstrip()))


def _stands_for_word(element: InlineElement) -> bool:
    """Whether an atom has a placeholder, an address or code, and not only tags, references, symbols or a line."""
    return element.is_atom and element.start == element.end and element.is_word


def _cut_at_symbols(
    spans: Sequence[_SentenceSpan], run: TaggedText, is_frequent: Callable[[str], bool]
) -> Iterator[_SentenceSpan]:
    """Divide a text at a symbol that separates two sentences without a full stop: "It is red 😀 The dog is small".

    Bullets and vertical lines separate any two texts. Other symbols count before a frequent word with a capital letter.
    """
    places = [
        element.start
        for element in run.elements.values()
        if element.is_atom and _separates(element, run.text, is_frequent)
    ]
    for span in spans:
        start = span.start
        for place in places[bisect_right(places, start) : bisect_left(places, span.end)]:
            text = run.text[start:place].rstrip()
            following = run.text[place : span.end]
            if text and following.strip():
                yield _SentenceSpan(start, start + len(text), "")
                start = place + len(following) - len(following.lstrip())
        yield _SentenceSpan(start, span.end, span.separator)


def _separates(element: InlineElement, text: str, is_frequent: Callable[[str], bool]) -> bool:
    """Whether an atom stands between two sentences or items. text: the text of the run."""
    is_alone = element.start == element.end and element.space_before and element.space_after
    if not is_alone or not element.shown or any(map(str.isalnum, element.shown)):
        return False
    if element.shown in _BULLETS:
        return True
    following = _WORD.match(text, element.end)
    return (
        _SYMBOLS.fullmatch(element.shown) is not None
        and element.shown[0] not in _HEARTS
        and following is not None
        and following[1][0].isupper()
        and is_frequent(following[1].lower())
    )


def _without_atoms(run: TaggedText) -> str:
    """Return the text of a run, with the characters of each atom (content that must not change) replaced by spaces."""
    return "".join([" " * len(piece.text) if piece.kind == "atom" else piece.text for piece in run.pieces])


def _joined(spans: Sequence[_SentenceSpan], run: TaggedText, fits: Callable[[str], bool]) -> list[_SentenceSpan]:
    """Join sentences between which an inline element continues, if they are short enough together.

    fits: tells whether a text is short enough for the model.
    """
    starts, ends = [sentence.start for sentence in spans], [sentence.end for sentence in spans]
    joins = [0] * (len(spans) + 1)  # difference array of the number of elements that join a sentence to the next one
    waiting = list(run.roots)
    while waiting:
        element = waiting.pop()
        waiting += element.children
        first, last = bisect_right(ends, element.start), bisect_left(starts, element.end) - 1
        if first < last and (element.start > starts[first] or element.end < ends[last] or element.is_atom):
            joins[first] += 1
            joins[last] -= 1
    found: list[_SentenceSpan] = []
    group: list[_SentenceSpan] = []
    depth = 0
    for span, change in zip(spans, joins, strict=False):
        group.append(span)
        depth += change
        if not depth:
            if len(group) > 1:
                whole = replace(group[-1], start=group[0].start)
                group = [whole] if fits(_collapse(run.text, whole.start, whole.end)[0]) else group
            found += group
            group = []
    return found


def _widened(spans: Sequence[_SentenceSpan], run: TaggedText) -> list[_SentenceSpan]:
    """Extend sentences over white space, so that elements which overlap a sentence's end or start are inside it.

    A sentence is extended to the end of an element that begins in it and ends after it, and to the start of an element
    that begins before it and ends in it.
    """
    starts, ends = [sentence.start for sentence in spans], [sentence.end for sentence in spans]
    found = list(spans)
    waiting = list(run.roots)
    while waiting:
        element = waiting.pop()
        waiting += element.children
        first, last = bisect_right(ends, element.start), bisect_left(starts, element.end) - 1
        if first == last and starts[first] < element.start and ends[first] < element.end:
            found[first] = replace(found[first], end=max(found[first].end, element.end))
        if first == last and element.start < starts[first] and element.end < ends[first]:
            found[first] = replace(found[first], start=min(found[first].start, element.start))
    return found


def _collapse(
    text: str, start: int, end: int, spaces: str = " \t\n\r\f", atoms: frozenset[int] = frozenset()
) -> tuple[str, list[int]]:
    """Return the range [start, end) of a text with collapsed white space, without invisible characters.

    White space around the range is removed, and each sequence of `spaces` inside becomes one space.

    atoms: indices in the text of atoms without characters. White space before such an atom is left out if a mark such
        as a comma follows the atom.
    Returns the collapsed text, and for each index in the range the index in the collapsed text.
    """
    part = text[start:end]
    if _NOT_PLAIN.search(part) is None and atoms.isdisjoint(range(start, end)):
        leading, length = len(part) - len(part.lstrip()), len(part.strip())
        return part.strip(), [0] * leading + list(range(length)) + [length] * (len(part) - leading - length + 1)
    found: list[str] = []
    places: list[int] = []
    for place in range(start, end):
        character = text[place]
        places.append(len(found))
        if place in atoms and character in _MARKS and found and found[-1] == " ":
            found.pop()
            places[-1] -= 1
        if character in INVISIBLE:
            continue
        if character not in spaces:
            found.append(character)
        elif not found or found[-1] != " ":
            found.append(" ")
    collapsed = "".join(found)
    leading, length = len(collapsed) - len(collapsed.lstrip()), len(collapsed.strip())
    return collapsed.strip(), [min(max(place - leading, 0), length) for place in [*places, len(found)]]
