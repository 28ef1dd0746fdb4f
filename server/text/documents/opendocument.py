"""OpenDocument texts and presentations (.odt, .odp): paragraphs of mixed content with spans and links."""

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
"""Comments, and texts that a change has deleted."""


@dataclass
class OpenDocument(Document):
    """An archive with XML parts. paragraphs: element and text, in the order of the units. roots: the parts, by name."""

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
    """A document of OpenDocument, with headers and footers. Raises DocumentError."""
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
    """All paragraphs, also those inside notes and frames of others."""
    waiting = [element]
    while waiting:
        current = waiting.pop()
        if current.tag in _UNTRANSLATED:
            continue
        if current.tag in _PARAGRAPHS:
            yield current
        waiting += reversed(current)
