"""Document formats, by the suffix of a file's name."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import NamedTuple

from server.text.documents.catalogs import read_po, read_xliff
from server.text.documents.markdown import read_markdown
from server.text.documents.office import read_office
from server.text.documents.opendocument import read_opendocument
from server.text.documents.plain import read_json, read_text
from server.text.documents.subtitles import read_subtitles
from server.text.documents.units import Document, DocumentError
from server.text.documents.web import read_epub, read_html


class DocumentFormat(NamedTuple):
    """One document format.

    read: parses the bytes of a file. Raises DocumentError.
    media_type: MIME type of such files.
    package: optional Python package that the format needs; empty if the format needs no such package.
    """

    read: Callable[[bytes], Document]
    media_type: str
    package: str = ""


_OFFICE = "application/vnd.openxmlformats-officedocument."
_OPEN = "application/vnd.oasis.opendocument."
FORMATS: Mapping[str, DocumentFormat] = {
    "txt": DocumentFormat(read_text, "text/plain; charset=utf-8"),
    "md": DocumentFormat(read_markdown, "text/markdown; charset=utf-8"),
    "html": DocumentFormat(read_html, "text/html; charset=utf-8"),
    "htm": DocumentFormat(read_html, "text/html; charset=utf-8"),
    "json": DocumentFormat(read_json, "application/json"),
    "srt": DocumentFormat(read_subtitles, "application/x-subrip"),
    "vtt": DocumentFormat(read_subtitles, "text/vtt"),
    "docx": DocumentFormat(read_office, f"{_OFFICE}wordprocessingml.document", "lxml"),
    "pptx": DocumentFormat(read_office, f"{_OFFICE}presentationml.presentation", "lxml"),
    "xlsx": DocumentFormat(read_office, f"{_OFFICE}spreadsheetml.sheet", "lxml"),
    "odt": DocumentFormat(read_opendocument, f"{_OPEN}text", "lxml"),
    "odp": DocumentFormat(read_opendocument, f"{_OPEN}presentation", "lxml"),
    "epub": DocumentFormat(read_epub, "application/epub+zip"),
    "po": DocumentFormat(read_po, "text/x-gettext-translation", "translate"),
    "pot": DocumentFormat(read_po, "text/x-gettext-translation", "translate"),
    "xliff": DocumentFormat(read_xliff, "application/xliff+xml", "lxml"),
    "xlf": DocumentFormat(read_xliff, "application/xliff+xml", "lxml"),
}


def available_formats() -> list[str]:
    """Suffixes of the formats whose packages are installed."""
    return [
        suffix
        for suffix, document_format in FORMATS.items()
        if not document_format.package or importlib.util.find_spec(document_format.package)
    ]


def format_of(filename: str) -> DocumentFormat:
    """Return the format of a file, by the suffix of its name.

    Raises DocumentError for an unknown suffix, and for a format whose Python package is not installed.
    """
    suffix = filename.rpartition(".")[2].lower() if "." in filename else ""
    found = FORMATS.get(suffix)
    if found is None:
        raise DocumentError(f"the name of the file must end in one of {', '.join(f'.{ending}' for ending in FORMATS)}")
    if suffix not in available_formats():
        raise DocumentError(f"documents in .{suffix} need packages: pip install 'triptych[documents]'")
    return found
