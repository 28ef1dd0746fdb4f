"""E-books, and archives that would become too large when unpacked. These tests need no additional package."""

from __future__ import annotations

import io
import zipfile

import pytest

from server.text.documents import archive
from server.text.documents.archive import Archive
from server.text.documents.units import DocumentError
from tests.text.documents.translating import read, translated

CHAPTER = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml"><head><title>One</title><style>p { }</style></head>
<body><a id="x"/><p>We&nbsp;like <i>it</i> &amp; more<br/>next</p><pre>code</pre></body></html>
"""
CONTENTS = """<?xml version="1.0"?><ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><head>
<meta name="a" content="b"/></head>
<navMap><navPoint id="n"><navLabel>
<text>Chapter one</text></navLabel><content src="a.xhtml"/></navPoint></navMap></ncx>"""


def zipped(**members: str | bytes) -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in members.items():
            target.writestr(name, content)
    return output.getvalue()


def book() -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as target:
        target.writestr("mimetype", "application/epub+zip")
        target.writestr("a.xhtml", CHAPTER, zipfile.ZIP_DEFLATED)
        target.writestr("toc.ncx", CONTENTS)
        target.writestr("image.png", b"\x89PNG")
        target.writestr("old.html", "<p>not<br>XML")
    return output.getvalue()


def test_an_e_book() -> None:
    with zipfile.ZipFile(io.BytesIO(translated("a.epub", book()))) as found:
        assert [entry.filename for entry in found.infolist()] == [
            "mimetype",
            "a.xhtml",
            "toc.ncx",
            "image.png",
            "old.html",
        ]
        assert found.infolist()[0].compress_type == zipfile.ZIP_STORED
        assert found.read("image.png") == b"\x89PNG" and found.testzip() is None
        chapter = found.read("a.xhtml").decode()
        expected = CHAPTER.replace("&nbsp;", "\xa0")
        for text in ("One", "We", "like", "it<", "more", "next"):
            expected = expected.replace(text, text.upper(), 1)
        assert chapter == expected.replace("tITle", "title")
        assert found.read("toc.ncx").decode() == CONTENTS.replace("Chapter one", "CHAPTER ONE")
        assert found.read("old.html") == b"<p>NOT<br>XML"


@pytest.mark.parametrize("name", ["a.epub", "a.docx", "a.odt"])
def test_what_is_no_archive(name: str) -> None:
    if name != "a.epub":
        pytest.importorskip("lxml")
    for data in (b"", b"PK\x03\x04", zipped(a="b")):
        with pytest.raises(DocumentError):
            read(name, data)


def test_archives_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zipped(**{"a.xhtml": "0" * 3_000_000})
    assert len(bomb) < 10_000
    monkeypatch.setattr(archive, "MAX_TEXT_BYTES", 1 << 20)
    with pytest.raises(DocumentError, match="more than 1 MiB"):
        read("a.epub", bomb)
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 2 << 20)
    with pytest.raises(DocumentError, match="limit is 2 MiB"):
        Archive(bomb)
    monkeypatch.setattr(archive, "MAX_MEMBERS", 1)
    with pytest.raises(DocumentError, match="2 members"):
        Archive(zipped(a="", b=""))


def test_a_stated_size_that_is_too_small() -> None:
    """A file in an archive is read only up to its stated size, so a size that is too small cannot evade the limits."""
    data = bytearray(zipped(**{"a.xhtml": "0" * 100_000}))
    place = data.rindex(b"PK\x01\x02") + 24
    data[place : place + 4] = (10).to_bytes(4, "little")
    with pytest.raises(DocumentError, match="damaged"):
        read("a.epub", bytes(data))
