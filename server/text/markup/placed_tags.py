"""Write a translation as markup, with each tag at its place and the white space that it had in the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from server.text.markup.line_breaks import are_breaks, has_break
from server.word_bounds import is_word_character

Span = tuple[int, int]
_OPENING = frozenset("([{«‹“„‘¿¡「『（【〈《")
_CLOSING = frozenset(")]}»›”’.,;:!?…」』）】〉》。，、；：！？؟،")


@dataclass
class InlineTag:
    """An inline element of a sentence, or an atom: inline content that must not change.

    start, end: range of the element's text in the sentence, as character indices.
    opening, closing: the two tags as they are written; for an atom, all its characters and an empty string.
    children: elements and atoms inside.
    space_before, space_after: whether white space, or an end of the sentence, is next to the atom.
    shown: for an atom that is a protected part of the text (a URL, a placeholder), its characters; else empty.
    """

    start: int
    end: int
    opening: str
    closing: str = ""
    is_atom: bool = False
    children: list[InlineTag] = field(default_factory=list)
    space_before: bool = False
    space_after: bool = False
    shown: str = ""

    @property
    def is_break(self) -> bool:
        """Whether this is an atom that separates words, as a line break does."""
        return self.is_atom and self.start == self.end and has_break(self.opening)

    @property
    def is_only_break(self) -> bool:
        """Whether this is a line break, or several, without other tags such as an image."""
        return self.is_break and are_breaks(self.opening)


@dataclass(frozen=True)
class PlacedTag:
    """A tag with its place in the translation.

    first, last: range [first, last) of units (words and punctuation marks) around which the tag goes. For a tag
        without text both are the index of the unit before which it stands.
    inner: the tags inside, with their places.
    touches_word_before, touches_word_after: for a tag without text, whether it is part of a word in the source.
    """

    first: int
    last: int
    tag: InlineTag
    inner: list[PlacedTag]
    touches_word_before: bool = False
    touches_word_after: bool = False

    @property
    def is_point(self) -> bool:
        """Whether the tag shows something without a word of the translation: an atom, or an element around an atom."""
        return self.first == self.last and (self.tag.is_atom or any(tag.is_atom for tag in all_tags(self.tag.children)))


def all_tags(tags: Sequence[InlineTag]) -> Iterator[InlineTag]:
    """Yield the tags and all tags inside them, in the order of their start in the text."""
    for tag in tags:
        yield tag
        yield from all_tags(tag.children)


def with_breaks_in_order(placed: Sequence[PlacedTag], tags: Sequence[InlineTag]) -> list[PlacedTag]:
    """Return placed tags whose line breaks have the order of the source, inside and outside of elements.

    The places stay: a line break may get the place of another one, outside its own element. One that is joined with
    another atom, such as an image, stays in its element.

    placed: outermost tags with their places, in order. tags: outermost tags of the source.
    """
    breaks = [tag for tag in all_tags(tags) if tag.is_only_break]
    return list(_with_breaks(placed, iter(breaks))) if len(breaks) > 1 else list(placed)


def _with_breaks(placed: Sequence[PlacedTag], breaks: Iterator[InlineTag]) -> Iterator[PlacedTag]:
    for there in placed:
        if there.tag.is_only_break:
            yield replace(there, tag=next(breaks))
        else:
            yield replace(there, inner=list(_with_breaks(there.inner, breaks))) if there.inner else there


def compose(
    placed: Sequence[PlacedTag], units: Sequence[Span], text: str, at: int, end: int, escape: Callable[[str], str]
) -> Iterator[str]:
    """Yield the pieces of markup for the characters [at, end) of the translation, with the tags placed in them.

    text: the translation. escape: turns characters into markup.
    """
    origin = at
    last_atom: InlineTag | None = None
    for index, placed_tag in enumerate(placed):
        start = units[placed_tag.first][0] if placed_tag.first < len(units) else end
        start = min(max(start, at), end)
        if placed_tag.tag.is_break:
            before, after = text[at:start].rstrip(), text[start:end].lstrip()
            yield escape(before)
            yield " " if placed_tag.tag.space_before and start > origin else ""
            yield placed_tag.tag.opening
            yield " " if placed_tag.tag.space_after and after else ""
            at, last_atom = end - len(after), placed_tag.tag
            continue
        stop = units[placed_tag.last - 1][1] if placed_tag.last > placed_tag.first else start
        is_point = placed_tag.is_point
        if is_point and not placed_tag.tag.space_before and placed_tag.tag.space_after:
            # An atom that touches the word before it goes before the white space.
            start = max(at, len(text[:start].rstrip())) if start > origin else start
            stop = start
        before = text[at:start]
        yield escape(before)
        if is_point and _needs_space(placed_tag, last_atom if not before else None, text, start, origin):
            yield " "
        yield placed_tag.tag.opening
        if not placed_tag.tag.is_atom:
            yield from compose(placed_tag.inner, units, text, start, stop, escape)
            yield placed_tag.tag.closing
        at = stop
        last_atom = placed_tag.tag if is_point else None
        following = text[at : at + 1]
        follower = placed[index + 1] if index + 1 < len(placed) else None
        is_followed = follower is not None and follower.last == placed_tag.last and follower.tag.is_atom
        if is_point and not is_followed and at < end:
            wants_space = placed_tag.tag.space_after and not following.isspace() and following not in _CLOSING
            if wants_space or (_is_in_word(following) and not placed_tag.touches_word_after):
                yield " "
    yield escape(text[at:end])


def _needs_space(placed: PlacedTag, neighbour: InlineTag | None, text: str, at: int, origin: int) -> bool:
    """Whether a space must be written before an atom.

    placed: the atom. neighbour: another atom right before it; None if there is no such atom. text: the translation.
    at: index at which the atom is written. origin: index at which the part begins that is being written.
    """
    if neighbour is not None:
        # Without the text between them, as in "{a}, {b}", two atoms must not become one.
        return (placed.tag.space_before and neighbour.space_after) or neighbour.end != placed.tag.start
    previous = text[at - 1 : at] if at > origin else ""
    if _is_in_word(previous) and not placed.touches_word_before:
        return True
    return placed.tag.space_before and bool(previous) and not previous.isspace() and previous not in _OPENING


def _is_in_word(character: str) -> bool:
    """Whether a character belongs to a word of a script that separates words by spaces.

    character: one character, or empty at an end of the text.
    """
    return bool(character) and is_word_character(character)
