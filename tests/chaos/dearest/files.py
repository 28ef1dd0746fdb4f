"""Create large files for request bodies from a few numbers: recordings and documents."""

from __future__ import annotations

import io
import struct
import zipfile

AUDIO_RATE_BYTES = 1 << 20
"""Weight of one second of audio beside counts of repetitions: `shrink` halves the largest, so it shortens audio first.
"""


class NamedFile(bytes):
    """The bytes of a file with a name, which tells the server its format."""

    name = "file"


def wav(seconds: float, rate: int, channels: int, bits: int) -> bytes:
    """A WAV file with noise. rate: sampling rate in Hz. bits: bits per sample."""
    frame = channels * bits // 8
    size = int(seconds * rate) * frame
    noise = bytes(range(7, 247, 3)) * (size // 80 + 1)
    head = struct.pack(
        "<4sI4s4sIHHIIHH", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, channels, rate, rate * frame, frame, bits
    )
    return head + struct.pack("<4sI", b"data", size) + noise[:size]


_XML = '<?xml version="1.0" encoding="utf-8"?>'
_WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_TYPES = _XML + '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>'
_CONTAINER = (
    _XML + '<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
)
_PACKAGE = (
    _XML + '<package xmlns="http://www.idpf.org/2007/opf" version="3.0"><manifest>'
    '<item id="a" href="a.xhtml" media-type="application/xhtml+xml"/></manifest><spine><itemref idref="a"/></spine>'
    "</package>"
)
_PARTS = {
    "txt": ("", "{}\n\n", ""),
    "md": ("", "- {}\n", ""),
    "html": ("<html><body>", "<p>{}</p>", "</body></html>"),
    "json": ("[", '"{}",', '""]'),
    "srt": ("", "1\n00:00:01,000 --> 00:00:02,000\n{}\n\n", ""),
    "po": (
        'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n',
        'msgctxt "{index}"\nmsgid "{}"\nmsgstr ""\n\n',
        "",
    ),
    "xliff": (
        '<xliff version="1.2"><file source-language="en" target-language="fr" datatype="x" original="x"><body>',
        '<trans-unit id="{index}"><source>{}</source></trans-unit>',
        "</body></file></xliff>",
    ),
    "docx": (f"<w:document {_WORD}><w:body>", "<w:p><w:r><w:t>{}</w:t></w:r></w:p>", "</w:body></w:document>"),
    "epub": ('<html xmlns="http://www.w3.org/1999/xhtml"><body>', "<p>{}</p>", "</body></html>"),
}
"""For each document format: the beginning, one paragraph with `{}` for its text, and the end."""
_ARCHIVES = {
    "docx": ({"[Content_Types].xml": _TYPES}, "word/document.xml"),
    "epub": ({"META-INF/container.xml": _CONTAINER, "book.opf": _PACKAGE}, "a.xhtml"),
}
"""For each format that is a ZIP archive: its other members, and the name of the member with the paragraphs."""
DOCUMENT_FORMATS = tuple(_PARTS)


def document(suffix: str, text: str, count: int) -> NamedFile:
    """A document with the same text in `count` paragraphs, cells, cues or messages.

    suffix: file name suffix of the format, one of `DOCUMENT_FORMATS`.
    """
    begin, part, end = _PARTS[suffix]
    part = part.replace("{}", text)
    parts = [part.replace("{index}", str(index)) for index in range(count)] if "{index}" in part else [part] * count
    content = (begin + "".join(parts) + end).encode()
    if suffix in _ARCHIVES:
        members, name = _ARCHIVES[suffix]
        output = io.BytesIO()
        with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, data in (members | {name: content}).items():
                archive.writestr(member, data)
        content = output.getvalue()
    file = NamedFile(content)
    file.name = f"file.{suffix}"
    return file
