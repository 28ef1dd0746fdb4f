"""Find the texts of OpenDocument files (.odt, .odp), and write the files with translated texts.

A paragraph mixes text with elements, such as formatted spans and links. Programs also divide a text into spans that
look alike, to record which words were edited together; these are one text here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from server.text.documents.archive import Archive
from server.text.documents.inline import Fragment
from server.text.documents.mixed_content import add_content, fill
from server.text.documents.units import Document, DocumentError
from server.text.documents.xml_tree import Element, local_name, parse_xml, xml_bytes

_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
_PARAGRAPHS = (_TEXT + "p", _TEXT + "h")
_SPAN = _TEXT + "span"
_FORMATTED = (_SPAN, _TEXT + "a")
_UNTRANSLATED = (_OFFICE + "annotation", _TEXT + "tracked-changes")
"""Elements whose texts are not translated: comments, and text that a tracked change has deleted."""
_UNSEEN = re.compile(r"rsid|paragraph-rsid|(?:language|country|script|rfc-language-tag)(?:-asian|-complex)?")
"""Local names of text properties that change no character's appearance: marks of editing sessions, and languages."""

_Look = tuple[object, ...]
"""A value that is equal for spans with the same appearance; empty for spans that look like the text around them."""


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
        looks = _looks(root)
        _remove_readings(root)
        for element in _paragraphs(root):
            _join_spans(element, looks)
            fragment = Fragment()
            add_content(element, fragment, lambda child: child.tag in _FORMATTED)
            if fragment.has_text:
                document.add(fragment.unit())
                document.paragraphs.append((element, fragment))
    return document


def _remove_readings(root: Element) -> None:
    """Remove the readings above words (ruby text), so that these words are translated with their sentence.

    root: XML of a part.
    """
    from lxml import etree

    etree.strip_elements(root, _TEXT + "ruby-text", with_tail=False)
    etree.strip_tags(root, _TEXT + "ruby", _TEXT + "ruby-base")


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


def _looks(root: Element) -> dict[str, _Look]:
    """The appearance that each automatic style of text gives, by the style's name.

    root: XML of a part. Programs write automatic styles themselves; the styles that people name are not among them.
    """
    found: dict[str, _Look] = {}
    for style in root.iterfind(f"{_OFFICE}automatic-styles/{_STYLE}style"):
        if style.get(_STYLE + "family") != "text":
            continue
        parent = style.get(_STYLE + "parent-style-name")
        look: list[object] = [] if parent is None else [parent]
        for properties in style:
            seen = [item for item in properties.items() if not _UNSEEN.fullmatch(item[0].rpartition("}")[2])]
            is_plain = local_name(properties) == "text-properties" and not len(properties)
            look += sorted(seen) if is_plain else [style]
        found[style.get(_STYLE + "name", "")] = tuple(look)
    return found


def _join_spans(paragraph: Element, looks: Mapping[str, _Look]) -> None:
    """Remove the spans of a paragraph that format nothing, and join neighbouring spans that look alike.

    looks: appearance of each automatic style, see `_looks`.
    """
    from lxml import etree

    def look(span: Element) -> _Look:
        name = span.get(_TEXT + "style-name")
        return looks.get(name, (name,))

    removed = _TEXT + "removed"
    for span in paragraph.iter(_SPAN):
        if not look(span):
            span.tag = removed
    etree.strip_tags(paragraph, removed)
    for span in list(paragraph.iter(_SPAN)):
        following = span.getnext()
        while following is not None and not span.tail and following.tag == _SPAN and look(following) == look(span):
            if len(span):
                span[-1].tail = (span[-1].tail or "") + (following.text or "")
            else:
                span.text = (span.text or "") + (following.text or "")
            span.extend(list(following))
            span.tail = following.tail
            span.getparent().remove(following)
            following = span.getnext()
