"""Pieces of HTML, XML or plain text, and which of them are atoms: inline markup that is kept as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from server.text.markup.line_breaks import has_break

NEAR = 16
"""Number of pieces on each side of an atom that are searched for white space next to the atom."""


@dataclass(slots=True)
class Piece:
    """A part of a document: text, a tag, or markup that does not change.

    kind: `text`; `open` or `close` for an inline tag; `atom` for inline content that must not change; `block` for
        markup that ends a run.
    raw: the characters in the document.
    name: name of the element, for a tag.
    text: characters with references resolved; for an atom, its text that belongs to the sentence.
    shown: for an atom that is a protected part of the text, its characters with references resolved; else empty.
    is_word: whether a protected part counts as a word where ends of sentences are looked for.
    """

    kind: str
    raw: str
    name: str = ""
    text: str = ""
    shown: str = ""
    is_word: bool = False

    @property
    def is_break(self) -> bool:
        """Whether this is a line break, possibly with other atoms."""
        return self.kind == "atom" and not self.text and has_break(self.raw)


def notes_as_atoms(pieces: list[Piece]) -> list[Piece]:
    """Make one atom of each superscript without letters, such as the mark of a footnote: garden<sup>[1]</sup>.

    A link without letters that touches the word or mark before it counts too: garden.<a href="#n1">1</a>. A model
    takes such a mark for a part of the word before it. A superscript inside a word stays text.
    """
    found: list[Piece] = []
    at = 0
    while at < len(pieces):
        end = _end_of_note(pieces, at) if _may_be_note(pieces, at) else at
        if end > at:
            found.append(Piece("atom", "".join([part.raw for part in pieces[at:end]])))
        else:
            found.append(pieces[at])
        at = max(end, at + 1)
    return found


def _may_be_note(pieces: Sequence[Piece], at: int) -> bool:
    """Whether a piece opens a superscript, or a link that touches the text before it."""
    piece = pieces[at]
    if piece.kind != "open" or piece.name not in ("sup", "a"):
        return False
    before = next(
        (part for part in reversed(pieces[max(0, at - NEAR) : at]) if part.text or part.kind == "block"), None
    )
    return piece.name == "sup" or (before is not None and before.kind == "text" and not before.text[-1].isspace())


def _end_of_note(pieces: Sequence[Piece], start: int) -> int:
    """Index after the closing tag of the superscript that begins at `start`; `start` if it is no mark of a note."""
    depth = 0
    for index in range(start, min(start + NEAR, len(pieces))):
        piece = pieces[index]
        depth += (piece.kind == "open") - (piece.kind == "close")
        if piece.kind == "block" or any(map(str.isalpha, piece.text)):
            return start
        if not depth:
            following = next((part.text for part in pieces[index + 1 : index + 1 + NEAR] if part.text), "")
            return start if following[:1].isalnum() else index + 1
    return start


def joined_atoms(pieces: list[Piece]) -> list[Piece]:
    """Join neighbouring atoms without text to one atom. An inline element without text becomes an atom, too.

    White space inside such an element still separates words: a text piece with one space, and no characters of the
    document, is put before the atom.
    """
    found: list[Piece] = []
    for piece in pieces:
        if piece.kind == "close":
            start = len(found) - 1
            while start >= 0 and ((found[start].kind == "atom" and not found[start].text) or _is_space(found[start])):
                start -= 1
            if start >= 0 and found[start].kind == "open" and found[start].name == piece.name:
                inner = [*found[start:], piece]
                del found[start:]
                piece = Piece("atom", "".join([atom_part.raw for atom_part in inner]))
                if any(_is_space(atom_part) for atom_part in inner):
                    found.append(Piece("text", "", text=" "))
        found.append(piece)
    return list(_joined_neighbours(found))


def _joined_neighbours(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Join each sequence of atoms without text, with the white space between them, to one atom."""
    group: list[Piece] = []
    size = 0  # pieces of the group up to its last atom
    for piece in [*pieces, Piece("", "")]:
        is_atom = piece.kind == "atom" and not piece.text
        if is_atom or (group and _is_space(piece) and piece.raw):
            group.append(piece)
            size = len(group) if is_atom else size
            continue
        if group:
            parts = group[:size]
            is_shown = all(part.shown for part in parts if part.kind == "atom")
            shown = "".join([part.shown or part.text for part in parts]) if is_shown else ""
            yield Piece(
                "atom",
                "".join([part.raw for part in parts]),
                shown=shown,
                is_word=is_shown and any(part.is_word for part in parts),
            )
            yield from group[size:]
            group = []
        if piece.kind:
            yield piece


def spaced_breaks(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Put a space after each line break that touches the words around it, so that the model reads two words.

    The space is a text piece without characters of the document.
    """
    is_spaced, last = True, None
    for piece in pieces:
        if last is not None and not is_spaced and piece.kind != "block" and not piece.text[:1].isspace():
            yield Piece("text", "", text=" ")
        last = None
        if piece.is_break:
            last = piece
        elif piece.text or piece.kind == "block":
            is_spaced = piece.kind == "block" or piece.text[-1].isspace()
        yield piece


def _is_space(piece: Piece) -> bool:
    return piece.kind == "text" and not piece.text.strip()
