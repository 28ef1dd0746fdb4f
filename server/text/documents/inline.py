"""Text with inline formatting, as an XML fragment, so that the formatting is kept by the translation of markup.

- `<g id="0">...</g>`: formatted text.
- `<x id="1"/>`: an object without text, such as an image.
- `<br id="2"/>`: a line break or a tab inside a text.
- `<p id="3"/>`: a line break between two texts that are translated separately.

An id is an index into a list of originals: objects of the document format, which are written back around or between
the translated texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from server.text.documents.units import DocumentError, TextUnit
from server.text.markup.line_breaks import BREAK
from server.text.markup.markup_options import MarkupOptions

FRAGMENT = MarkupOptions("xml", splitting_tags=frozenset({"p"}), non_splitting_tags=frozenset({"g", "x", BREAK}))
"""Options to parse the XML fragment of a text. Only `<p/>` splits the text."""
SPACES = frozenset({"br", "cr", "tab", "ptab", "line-break", "s"})
"""Names of the elements of Office Open XML and OpenDocument that are line breaks, tabs or spaces."""
MAX_DEPTH = 100
"""Most formatted texts inside each other."""
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML cannot contain."""
_TOKEN = re.compile(r'<(?:g id="(\d+)"|(/)g|(?:x|br|p) id="(\d+)"/)>')
_REFERENCE = re.compile(r"&(?:amp|lt|gt|#160);")
_FIRST_LETTER = re.compile(r"[\s*_~\[(\"'“«]*([^\W\d_])")
_CHARACTERS = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&#160;": "\xa0"}


@dataclass
class Inline:
    """Formatted text, or an object without text that stays as it is, such as an image.

    original: object of the document format, which is written back.
    children: texts and formatting inside; None for an object without text.
    """

    original: Any
    children: list[str | Inline] | None


@dataclass
class Fragment:
    """Builder of a text with inline formatting.

    originals: objects of the document format, by the id of their element.
    has_text: whether a text was added that is not white space alone.
    """

    originals: list[Any] = field(default_factory=list)
    _parts: list[str] = field(default_factory=list)
    has_text: bool = False
    _depth: int = 0

    def text(self, text: str) -> None:
        at = 0
        for match in _NO_XML.finditer(text):
            self._text(text[at : match.start()])
            self.atom(match[0])
            at = match.end()
        self._text(text[at:])

    def _text(self, text: str) -> None:
        self.has_text = self.has_text or bool(text.strip())
        self._parts.append(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))

    def open(self, original: Any) -> None:
        """Begin formatted text. Raises DocumentError for formatting that is nested too deep."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise DocumentError(f"a text has formatting that is nested more than {MAX_DEPTH} deep")
        self._parts.append(f'<g id="{len(self.originals)}">')
        self.originals.append(original)

    def close(self) -> None:
        self._depth -= 1
        self._parts.append("</g>")

    def atom(self, original: Any, name: Literal["x", "br", "p"] = "x") -> None:
        """Add an object without text. name: `br` if it separates words, `p` if it separates texts; see the module."""
        self._parts.append(f'<{name} id="{len(self.originals)}"/>')
        self.originals.append(original)

    def line_break(self, original: Any, following: str) -> None:
        """Add a line break that stays. following: text after it.

        A line that begins with a small letter continues the sentence; other lines are translated separately.
        """
        first = _FIRST_LETTER.match(following)
        self.atom(original, "br" if first is not None and first[1].islower() else "p")

    def unit(self) -> TextUnit:
        """Return the text as a unit to translate: an XML fragment whose elements stand for formatting and objects."""
        return TextUnit("".join(self._parts), FRAGMENT)

    def restored(self, translation: str) -> list[str | Inline]:
        """Parse a translation of `unit()` into texts, formatted texts and objects."""
        return restored(translation, self.originals)


def restored(translation: str, originals: Sequence[Any]) -> list[str | Inline]:
    """Parse a translated XML fragment into texts, formatted texts and objects.

    originals: objects of the document format, by the id of their element.
    """
    root: list[str | Inline] = []
    path = [root]
    at = 0
    for match in _TOKEN.finditer(translation):
        _add_text(path[-1], translation[at : match.start()])
        at = match.end()
        if match[1]:
            children: list[str | Inline] = []
            path[-1].append(Inline(originals[int(match[1])], children))
            path.append(children)
        elif match[2]:
            path.pop()
        else:
            path[-1].append(Inline(originals[int(match[3])], None))
    _add_text(path[-1], translation[at:])
    return root


def _add_text(nodes: list[str | Inline], text: str) -> None:
    if text:
        nodes.append(_NO_XML.sub("", _REFERENCE.sub(lambda match: _CHARACTERS[match[0]], text)))


def text_of(nodes: Sequence[str | Inline]) -> str:
    """Join texts and formatting to one text, for formats that write formatting as text (Markdown, subtitles).

    The original of formatted text is a pair (text before, text after); the original of an object is its text.
    Two equal marks around nothing, such as `****` in Markdown, are left out, because they would be read as text.
    """
    return "".join(map(_text, nodes))


def _text(node: str | Inline) -> str:
    if isinstance(node, str):
        return node
    if node.children is None:
        return str(node.original)
    before, after = node.original
    text = text_of(node.children)
    return before + text + after if text or before != after else ""
