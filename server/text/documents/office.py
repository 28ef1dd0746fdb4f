"""Read and write documents, presentations and workbooks of Office Open XML (.docx, .pptx, .xlsx)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from server.text.documents.archive import Archive
from server.text.documents.runs import DRAWING, SHEET, STRICT, WORD, RunFormat, RunParagraph
from server.text.documents.units import Document, DocumentError
from server.text.documents.xml_tree import Element, local_name, parse_xml, xml_bytes

_WORD_PARTS = re.compile(r"word/(?:document\d*|header\d*|footer\d*|footnotes|endnotes)\.xml$")
_DRAWING_PARTS = re.compile(
    r"ppt/(?:slides/slide|notesSlides/notesSlide)\d+\.xml$|(?:word|ppt|xl)/(?:charts/chart|diagrams/data|drawings/drawing)\d*\.xml$"
)
_SHEET_PARTS = re.compile(r"xl/(?:sharedStrings|worksheets/sheet\d+)\.xml$")
_TABLE_PARTS = re.compile(r"xl/tables/table\d+\.xml$")


@dataclass
class OfficeDocument(Document):
    """An Office Open XML file: an archive with XML parts.

    roots: XML of each part with texts, by the part's name. paragraphs: paragraph of each unit, in order.
    """

    archive: Archive | None = None
    roots: dict[str, Element] = field(default_factory=dict)
    paragraphs: list[RunParagraph] = field(default_factory=list)

    def write(self, translations: Sequence[str], target_lang: str) -> bytes:
        assert self.archive is not None, "a document was read from an archive"
        for unit, paragraph, translation in zip(self.units, self.paragraphs, translations, strict=True):
            if translation != unit.text:
                paragraph.replace(translation)
        return self.archive.written({name: xml_bytes(root) for name, root in self.roots.items()})


def read_office(data: bytes) -> Document:
    """Parse an Office Open XML file. Comments, formulas, and names of sheets and table columns are not translated.

    Raises DocumentError for a damaged archive or XML, for another kind of archive, and for too many texts.
    """
    archive = Archive(data)
    document = OfficeDocument(archive=archive)
    if "[Content_Types].xml" not in archive.names:
        raise DocumentError("the archive is no document of Office Open XML")
    columns = frozenset(_table_columns(archive))
    for name in archive.names:
        names = next(
            (
                names
                for pattern, names in ((_WORD_PARTS, WORD), (_DRAWING_PARTS, DRAWING), (_SHEET_PARTS, SHEET))
                if pattern.match(name)
            ),
            None,
        )
        if names is None:
            continue
        root = document.roots[name] = parse_xml(archive.read(name))
        if root.tag.startswith(STRICT):
            names = names.in_strict_files()
        for element in _paragraphs(root, names):
            if names.has_plain_texts and "".join(element.itertext()) in columns:
                continue
            paragraph = RunParagraph(element, names)
            if paragraph.is_readable and paragraph.fragment.has_text:
                document.add(paragraph.fragment.unit())
                document.paragraphs.append(paragraph)
    return document


def _paragraphs(root: Element, names: RunFormat) -> Iterator[Element]:
    """XML elements that contain runs: paragraphs in the namespace of the format, or the texts of cells in a workbook.

    root: XML of one part.
    """
    # A list, because reading a run moves its elements.
    yield from list(root.iter("{*}si", "{*}is") if names.has_plain_texts else root.iter(names.namespace + "p"))


def _table_columns(archive: Archive) -> Iterator[str]:
    """Names of table columns. Each must equal the text of its header cell, and formulas use it, so both stay."""
    for name in archive.names:
        if _TABLE_PARTS.match(name):
            for element in parse_xml(archive.read(name)).iter():
                if local_name(element) == "tableColumn":
                    yield element.get("name") or ""
