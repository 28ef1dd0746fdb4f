"""Read and write HTML pages, and e-books (EPUB), whose chapters are XHTML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from server.text.documents.archive import Archive
from server.text.documents.page_encoding import decoded_page
from server.text.documents.units import Document, DocumentError, TextDocument, TextUnit, decoded
from server.text.markup.markup import TaggedText, parse
from server.text.markup.markup_options import MarkupOptions
from server.text.markup.markup_tokens import MarkupError
from server.text.markup.tag_rules import BLOCK_TAGS, UNTRANSLATED_TAGS

MAX_TAGS = 400_000
"""Limit on the number of tags in one page."""
HTML = MarkupOptions("html", max_tags=MAX_TAGS)
XHTML = MarkupOptions(
    "xml", splitting_tags=BLOCK_TAGS, ignore_tags=UNTRANSLATED_TAGS, detect_outline=False, max_tags=MAX_TAGS
)
NCX = MarkupOptions("xml", splitting_tags=frozenset({"text"}), ignore_tags=frozenset({"head"}), max_tags=MAX_TAGS)
_ROOT = re.compile(r"<(?:html|ncx)\b")
_ENTITY = re.compile(r"&([A-Za-z][A-Za-z0-9]{1,31});")
_XML_ENTITIES = frozenset({"amp", "lt", "gt", "quot", "apos"})


def html_parts(text: str, options: MarkupOptions = HTML) -> Iterator[str | TextUnit]:
    """Split a page into markup that stays (strings), and the texts between block tags (units).

    Raises DocumentError for malformed markup, and for too many tags.
    """
    try:
        parts = parse(text, options)
    except MarkupError as error:
        raise DocumentError(str(error)) from None
    for part in parts:
        yield part if isinstance(part, str) else _unit(part, options)


def _unit(run: TaggedText, options: MarkupOptions) -> TextUnit:
    return TextUnit("".join([piece.raw for piece in run.pieces]), options)


def read_html(data: bytes) -> Document:
    """Parse an HTML page. Raises DocumentError for an unknown encoding, and for too many tags or texts."""
    text, encoding = decoded_page(data)
    document = TextDocument(encoding=encoding, unknown="xmlcharrefreplace")
    _add_page(document, document.parts, text, HTML)
    return document


def _add_page(document: Document, parts: list[str | int], text: str, options: MarkupOptions) -> None:
    for part in html_parts(text, options):
        parts.append(part if isinstance(part, str) else document.add(part))


@dataclass
class EpubDocument(Document):
    """An e-book in the EPUB format.

    pages: parts of each page, by its name in the archive. A part is text that stays, or the index of a unit.
    """

    archive: Archive | None = None
    pages: dict[str, list[str | int]] = field(default_factory=dict)

    def write(self, translations: Sequence[str], target_lang: str) -> bytes:
        assert self.archive is not None, "an e-book was read from an archive"
        changed = {
            name: "".join([part if isinstance(part, str) else translations[part] for part in parts]).encode()
            for name, parts in self.pages.items()
        }
        return self.archive.written(changed)


def read_epub(data: bytes) -> Document:
    """Parse an EPUB file: its chapters and its tables of contents.

    Raises DocumentError for a damaged archive, for encrypted chapters, and for an e-book without pages.
    """
    document = EpubDocument(archive=Archive(data))
    assert document.archive is not None
    if "META-INF/encryption.xml" in document.archive.names and _has_locked_text(document.archive):
        raise DocumentError("the e-book is protected against copying")
    for name in document.archive.names:
        suffix = name.rpartition(".")[2].lower()
        if suffix not in ("xhtml", "html", "htm", "ncx"):
            continue
        text, _ = decoded(document.archive.read(name))
        parts = document.pages[name] = []
        root = _ROOT.search(text)
        start = root.start() if root else 0
        body = _ENTITY.sub(_resolved, text[start:])
        try:
            _add_page(document, parts, body, NCX if suffix == "ncx" else XHTML)
            parts.insert(0, text[:start])
        except DocumentError:  # a page that is HTML, not XHTML
            parts.clear()
            _add_page(document, parts, text, HTML)
    if not document.pages:
        raise DocumentError("the e-book has no pages")
    return document


def _has_locked_text(archive: Archive) -> bool:
    """Whether chapters are encrypted. Encrypted fonts do not count: they are only obfuscated."""
    text = archive.read("META-INF/encryption.xml").decode("utf-8", "replace")
    return re.search(r'URI="[^"]*\.(?:xhtml|html|htm)"', text) is not None


def _resolved(match: re.Match[str]) -> str:
    """Replace a named entity of HTML by its character, because XML defines only five entities.

    Those five stay; `&` of an unknown entity becomes `&amp;`.
    """
    if match[1] in _XML_ENTITIES:
        return match[0]
    character = html.unescape(match[0])
    return character if character != match[0] else f"&amp;{match[1]};"
