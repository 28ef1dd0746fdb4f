"""Read and write OpenDocument texts and presentations (.odt, .odp).

A paragraph mixes text with elements, such as formatted spans and links.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from server.text.documents.archive import Archive
from server.text.documents.inline import Fragment
from server.text.documents.mixed_content import add_content, fill
from server.text.documents.units import Document, DocumentError
from server.text.documents.xml_tree import Element, parse_xml, xml_bytes

_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_PARAGRAPHS = (_TEXT + "p", _TEXT + "h")
_FORMATTED = (_TEXT + "span", _TEXT + "a")
_UNTRANSLATED = (_OFFICE + "annotation", _TEXT + "tracked-changes")
"""Elements whose texts are not translated: comments, and text that a tracked change has deleted."""


@dataclass
class OpenDocument(Document):
    """An OpenDocument file: an archive with XML parts.

    roots: XML of each part with texts, by the part's name. paragraphs: (XML element, its text) of each unit, in order.
    """

    archive: Archive | None = None
    roots: dict[str, Element] = field(default_factory=dict)
    paragraphs: list[tuple[Element, Fragment]] = field(default_factory=list)

    def write(self, translations: Sequence[str], target_lang: str) -> bytes:
        assert self.archive is not None, "a document was read from an archive"
        for unit, (element, fragment), translation in zip(self.units, self.paragraphs, translations, strict=True):
            if translation != unit.text:
                fill(element, fragment.restored(translation))
        return self.archive.written({name: xml_bytes(root) for name, root in self.roots.items()})


def read_opendocument(data: bytes) -> Document:
    """Parse an OpenDocument file, with its headers and footers.

    Raises DocumentError for a damaged or encrypted archive, for malformed XML, and for too many texts.
    """
    archive = Archive(data)
    document = OpenDocument(archive=archive)
    if "content.xml" not in archive.names:
        raise DocumentError("the archive is no OpenDocument")
    if b"encryption-data" in archive.read("META-INF/manifest.xml"):
        raise DocumentError("the document is encrypted")
    for name in ("content.xml", "styles.xml"):
        if name not in archive.names:
            continue
        root = document.roots[name] = parse_xml(archive.read(name))
        for element in _paragraphs(root):
            fragment = Fragment()
            add_content(element, fragment, lambda child: child.tag in _FORMATTED)
            if fragment.has_text:
                document.add(fragment.unit())
                document.paragraphs.append((element, fragment))
    return document


def _paragraphs(element: Element) -> Iterator[Element]:
    """All paragraphs and headings inside an XML element, also those in a note or frame inside another paragraph."""
    waiting = [element]
    while waiting:
        current = waiting.pop()
        if current.tag in _UNTRANSLATED:
            continue
        if current.tag in _PARAGRAPHS:
            yield current
        waiting += reversed(current)
