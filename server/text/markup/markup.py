"""Divide HTML, XML or plain text into markup that does not change, and runs of text with inline tags.

A run is the text between two block tags. Its inline tags are properly nested: a tag without a partner, or one that
crosses another, counts as a block tag. Joined, the raw characters of all parts are exactly the document.
Text and tags inside a run that must not change, such as code or a placeholder, are `atoms`.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from server.text.markup.markup_options import MarkupOptions
from server.text.markup.markup_tokens import MarkupError, MarkupToken, tokens
from server.text.markup.pieces import NEAR, Piece, joined_atoms, notes_as_atoms, spaced_breaks
from server.text.markup.protected import ProtectedPart
from server.text.markup.tag_rules import OPAQUE_TAGS, are_translated, html_blocks, xml_blocks

_NOWHERE = ProtectedPart(sys.maxsize, sys.maxsize, False)
"""Range of the next protected part when there is none: after the end of every text."""
_EMPTY_LINES = re.compile(r"((?<!\s)[^\S\r\n]*(?:\r\n|\r(?!\n)|\n)[^\S\r\n]*[\r\n]\s*)")
_LINK = re.compile(
    r"""(?P<image>!?)\[(?P<text>[^\[\]\n]{1,400})\]
    (?P<target>\((?:[a-z][a-z+.-]{0,20}:|[/\#.]|[\w-]{1,60}[./])[^()\s]{0,800}(?:\s"[^"\n]{0,200}")?\))""",
    re.VERBOSE,
)
"""A link or an image of Markdown, in plain text."""


@dataclass
class InlineElement:
    """An inline element of a run, or an atom: inline content that must not change.

    start, end: range of the element's text in the run's text, as character indices.
    opening, closing: the two tags as they are written; for an atom, all its characters and an empty string.
    children: elements and atoms inside.
    space_before, space_after: whether white space, or an end of the run, is next to the atom.
    shown: for an atom that is a protected part of the text, its characters with references resolved; else empty.
    is_word: whether a protected part counts as a word where ends of sentences are looked for.
    """

    start: int
    end: int
    opening: str
    closing: str = ""
    is_atom: bool = False
    children: list[InlineElement] = field(default_factory=list)
    space_before: bool = True
    space_after: bool = True
    shown: str = ""
    is_word: bool = False


@dataclass
class TaggedText:
    """A run: text with inline tags.

    pieces: parts of the run in order. text: characters of the whole run, with references resolved and without tags.
    roots: outermost elements and atoms.
    elements: element of each opening tag or atom, by the index of its piece.
    """

    pieces: list[Piece]
    text: str
    roots: list[InlineElement]
    elements: dict[int, InlineElement]


def parse(document: str, options: MarkupOptions) -> list[str | TaggedText]:
    """Divide a document into markup that does not change (strings) and texts with inline tags (`TaggedText`), in order.

    Raises MarkupError for XML that is not well-formed, and for too many or too deeply nested tags.
    """
    found = tokens(document, options.kind)
    if sum(token.kind in ("start", "void") for token in found) > options.max_tags:
        raise MarkupError(f"the markup has more than {options.max_tags} tags")
    parts: list[str | TaggedText] = []
    run: list[Piece] = []
    pieces = notes_as_atoms(_broken_tags_as_blocks(list(_pieces(found, options))))
    for piece in [*spaced_breaks(joined_atoms(pieces)), Piece("block", "")]:
        if piece.kind != "block":
            run.append(piece)
            continue
        if any(part.kind == "text" and part.text.strip() for part in run):
            parts.append(_run(run))
        else:
            parts.append("".join([part.raw for part in run]))
        parts.append(piece.raw)
        run = []
    return [part for part in parts if part]


def plain_text(document: str, options: MarkupOptions) -> str:
    """Return the text that will be translated, without tags, one line per run. Raises the errors of `parse`."""
    return "\n".join([part.text for part in parse(document, options) if isinstance(part, TaggedText)])


def _pieces(found: Sequence[MarkupToken], options: MarkupOptions) -> Iterator[Piece]:
    """Turn tokens into pieces. Consecutive tokens that are not translated become one atom, or one block."""
    is_block = xml_blocks(found, options) if options.kind == "xml" else html_blocks(found, options)
    kept: list[tuple[MarkupToken, bool]] = []
    texts: list[MarkupToken] = []
    for token, block, translated in zip(found, is_block, are_translated(found, options), strict=True):
        if texts and not (translated and token.kind == "text"):
            yield from _text_pieces(texts, options)
            texts = []
        if not translated:
            kept.append((token, block))
            continue
        if kept:
            yield _kept(kept)
            kept = []
        if token.kind == "text":
            texts.append(token)
        elif block:
            yield Piece("block", token.raw)
        elif token.kind in ("start", "end"):
            yield Piece("open" if token.kind == "start" else "close", token.raw, token.name)
        else:
            yield Piece("atom", token.raw)
    if kept:
        yield _kept(kept)
    if texts:
        yield from _text_pieces(texts, options)


def _text_pieces(found: Sequence[MarkupToken], options: MarkupOptions) -> Iterator[Piece]:
    """Turn consecutive text tokens into pieces of text, and atoms for their protected parts.

    In plain text, empty lines are blocks unless the options split at every line break. A protected part may contain
    character references, and so several tokens.
    """
    if options.kind == "text" and not options.split_at_newlines:
        for index, part in enumerate(_EMPTY_LINES.split(found[0].text)):
            if index % 2:
                yield Piece("block", part)
            else:
                yield from _with_links(part, options)
    elif options.kind == "text":
        yield from _with_links(found[0].text, options)
    else:
        yield from _with_atoms(found, options)


def _with_links(text: str, options: MarkupOptions) -> Iterator[Piece]:
    """Turn plain text into pieces. Markdown links become inline elements: their text is translated, their URL stays."""
    links = list(_LINK.finditer(text)) if options.protection.patterns and "](" in text else []
    kept = list(options.protection.spans(text)) if links else []
    at = 0
    for link in links:
        place = bisect_right(kept, (link.start(), sys.maxsize)) - 1
        if place >= 0 and link.start() < kept[place][1]:
            continue  # inside code
        yield from _with_atoms(_plain(text[at : link.start()]), options)
        at = link.end()
        if link["image"]:
            yield Piece("atom", link[0])
            continue
        yield Piece("open", "[", "link")
        yield from _with_atoms(_plain(link["text"]), options)
        yield Piece("close", f"]{link['target']}", "link")
    yield from _with_atoms(_plain(text[at:]), options)


def _plain(text: str) -> list[MarkupToken]:
    return [MarkupToken("text", text, text=text)] if text else []


def _with_atoms(found: Sequence[MarkupToken], options: MarkupOptions) -> Iterator[Piece]:
    parts = options.protection.parts("".join([token.text for token in found]))
    start, end, is_word = next(parts, _NOWHERE)
    place, atom, shown = 0, "", ""
    for token in found:
        at, last = place, place + len(token.text)
        if not token.text and atom:
            atom += token.raw
        elif not token.text:
            yield Piece("text", token.raw)
        while at < last:
            if end <= at:
                start, end, is_word = next(parts, _NOWHERE)
            is_reference = token.raw != token.text
            stop = last if is_reference else min(last, end if start <= at else start)
            raw = token.raw if is_reference else token.raw[at - place : stop - place]
            if start < stop:
                atom += raw
                shown += token.text[at - place : stop - place]
            else:
                yield Piece("text", raw, text=token.text[at - place : stop - place])
            at = stop
            if atom and end <= at:
                yield Piece("atom", atom, shown=shown, is_word=is_word)
                atom = shown = ""
        place = last


def _kept(group: Sequence[tuple[MarkupToken, bool]]) -> Piece:
    """Join tokens that are not translated to one piece: an atom if they are complete inline elements, else a block.

    group: (token, whether it is a block tag), in order.
    """
    raw = "".join([token.raw for token, _ in group])
    depth = lowest = 0
    for token, _ in group:
        depth += (token.kind == "start") - (token.kind == "end")
        lowest = min(lowest, depth)
    if depth or lowest or any(block for _, block in group):
        return Piece("block", raw)
    opaque = any(token.name in OPAQUE_TAGS for token, _ in group)
    return Piece("atom", raw, text="" if opaque else "".join([token.text for token, _ in group]))


def _broken_tags_as_blocks(pieces: list[Piece]) -> list[Piece]:
    """Turn each inline tag without a partner, and each pair of inline tags around a block, into blocks. In place.

    Returns the same list.
    """
    path: list[int] = []
    opened: Counter[str] = Counter()
    broken = 0  # number of outermost elements of `path` that contain a block

    def leave() -> int:
        index = path.pop()
        opened[pieces[index].name] -= 1
        return index

    for index, piece in enumerate(pieces):
        if piece.kind == "open":
            path.append(index)
            opened[piece.name] += 1
        elif piece.kind == "close" and opened[piece.name]:
            while pieces[path[-1]].name != piece.name:
                pieces[leave()].kind = "block"
                broken = max(broken, len(path))
            start = leave()
            if len(path) < broken:
                pieces[start].kind = piece.kind = "block"
                broken = len(path)
        elif piece.kind in ("close", "block"):
            piece.kind = "block"
            broken = len(path)
    for index in path:
        pieces[index].kind = "block"
    return pieces


def _has_space(neighbours: Iterable[Piece], last: bool, is_break: bool) -> bool:
    """Whether white space, or the end of the run, is next to a piece on one side.

    neighbours: the pieces on that side, nearest first. last: whether they stand before the piece, so that their last
        character counts. is_break: whether the piece is a line break. The space that is added after it does not count.
    """
    for piece in neighbours:
        if piece.text and (piece.raw or not is_break):
            return piece.kind == "text" and piece.text[-1 if last else 0].isspace()
        if piece.kind == "atom":
            return False
    return True


def _run(pieces: list[Piece]) -> TaggedText:
    roots: list[InlineElement] = []
    elements: dict[int, InlineElement] = {}
    path: list[InlineElement] = []
    text: list[str] = []
    at = 0
    for index, piece in enumerate(pieces):
        if piece.kind == "close":
            element = path.pop()
            element.end, element.closing = at, piece.raw
            continue
        if piece.kind != "text":
            is_atom = piece.kind == "atom"
            element = InlineElement(
                at, at + len(piece.text), piece.raw, is_atom=is_atom, shown=piece.shown, is_word=piece.is_word
            )
            if is_atom:
                before, after = pieces[max(0, index - NEAR) : index], pieces[index + 1 : index + 1 + NEAR]
                element.space_before = _has_space(reversed(before), True, piece.is_break)
                element.space_after = _has_space(after, False, piece.is_break)
            (path[-1].children if path else roots).append(element)
            elements[index] = element
            if not is_atom:
                path.append(element)
        text.append(piece.text)
        at += len(piece.text)
    return TaggedText(pieces, "".join(text), roots, elements)
