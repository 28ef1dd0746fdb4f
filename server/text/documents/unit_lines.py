"""Encode the texts of a document as lines of JSON, to pass them between the server and the process for documents.

A line has many texts, but is small enough that parsing it holds Python's global lock for a few milliseconds only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from server.text.documents.inline import FRAGMENT
from server.text.documents.units import DocumentError, TextUnit
from server.text.documents.web import HTML, NCX, XHTML
from server.text.markup.markup_options import MarkupOptions

KINDS: tuple[MarkupOptions | None, ...] = (None, FRAGMENT, HTML, XHTML, NCX)
"""The kinds of markup that texts of documents have; None for plain text. A line has the index of each text's kind."""
LINE_TEXTS = 1_000
LINE_CHARACTERS = 1 << 20


def text_lines(texts: Sequence[str]) -> bytes:
    """Encode texts without markup as lines of JSON. Raises DocumentError for a text with half of a surrogate pair."""
    return _joined(_line(portion) for portion in _portions(texts))


def read_text_lines(content: bytes) -> Iterator[str]:
    """Yield the texts that `text_lines` has encoded."""
    for line in content.splitlines():
        yield from json.loads(line)


def unit_lines(units: Sequence[TextUnit]) -> bytes:
    """Encode the texts of a document, with their kind of markup, as lines of JSON.

    Raises DocumentError for a text with half of a surrogate pair.
    """
    places = {id(kind): place for place, kind in enumerate(KINDS)}
    kinds = [places[id(unit.markup)] for unit in units]
    at = 0
    lines = []
    for portion in _portions([unit.text for unit in units]):
        lines.append(_line([kinds[at : at + len(portion)], portion]))
        at += len(portion)
    return _joined(iter(lines))


def read_unit_lines(content: bytes) -> Iterator[TextUnit]:
    """Yield the texts and their markup that `unit_lines` has encoded."""
    for line in content.splitlines():
        kinds, texts = json.loads(line)
        for kind, text in zip(kinds, texts, strict=True):
            yield TextUnit(text, KINDS[kind])


def _portions(texts: Sequence[str]) -> Iterator[list[str]]:
    portion: list[str] = []
    size = 0
    for text in texts:
        if portion and (len(portion) == LINE_TEXTS or size + len(text) > LINE_CHARACTERS):
            yield portion
            portion, size = [], 0
        portion.append(text)
        size += len(text)
    if portion:
        yield portion


def _line(value: object) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DocumentError("a text has a half of a surrogate pair, which is no character") from None


def _joined(lines: Iterator[bytes]) -> bytes:
    return b"\n".join(lines)
