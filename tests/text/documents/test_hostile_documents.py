"""Damaged and hostile documents of every format: each is read, or refused with a reason that says nothing of its text.

The process that reads them goes on, so that the next client's document does not wait for a new one.
"""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from collections.abc import Iterator

import pytest

from server.text.documents.document_process import Documents
from server.text.documents.reader import DocumentReader
from server.text.documents.unit_lines import text_lines
from server.text.documents.units import DocumentError

SECRET = "CaNaRy"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
OFFICE = "urn:oasis:names:tc:opendocument:xmlns:office:1.0"


def zipped(members: dict[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return output.getvalue()


def word(content: str, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    document = f'<w:document xmlns:w="{WORD}"><w:body>{content}</w:body></w:document>'
    return zipped({"[Content_Types].xml": "<Types/>", "word/document.xml": document}, method)


def slides(content: str) -> bytes:
    slide = f'<p xmlns:a="{DRAWING}">{content}</p>'
    return zipped({"[Content_Types].xml": "<Types/>", "ppt/slides/slide1.xml": slide})


def workbook(strings: str, table: str = "<table/>") -> bytes:
    sheet = f'<sst xmlns="{SHEET}">{strings}</sst>'
    return zipped({"[Content_Types].xml": "<Types/>", "xl/sharedStrings.xml": sheet, "xl/tables/table1.xml": table})


def open_text(content: str) -> bytes:
    document = f'<o:document xmlns:o="{OFFICE}" xmlns:t="{TEXT}">{content}</o:document>'
    return zipped({"mimetype": "x", "META-INF/manifest.xml": "<manifest/>", "content.xml": document})


def book(page: str) -> bytes:
    return zipped({"mimetype": "application/epub+zip", "page.xhtml": page})


def xliff(content: str) -> bytes:
    return f'<xliff version="1.2"><file><body>{content}</body></file></xliff>'.encode()


DANGEROUS = (b"<", b">", b"&", b'"', b"\\", b"\0", b"\xff", b"\n\n", b"*", b"|", b"]]>")
RUN = f"<w:r><w:rPr><w:b/></w:rPr><w:t>{SECRET} a</w:t></w:r>"
FIELD = '<w:r><w:fldChar w:fldCharType="{}"/></w:r>'
LINK = f"{FIELD.format('begin')}<w:r><w:instrText>HYPERLINK a</w:instrText></w:r>{FIELD.format('separate')}"
LONG = f"<w:p>{RUN * 99}</w:p>"
VALID = {
    "txt": f"{SECRET} one\r\n\r\ntwo\n".encode(),
    "md": f"# {SECRET}\n\n- *a* **b** [c](d) `e`\n\n| f | g |\n|---|---|\n| h | i |\n\n<b>j</b>\n".encode(),
    "html": f"<html><body><p>{SECRET} <b>a</b></p><script>x</script></body></html>".encode(),
    "json": json.dumps({"a": [SECRET, {"b": "two"}], "c": 1}).encode(),
    "srt": f"1\n00:00:01,000 --> 00:00:02,000\n- {SECRET} <i>a</i>\n- b\n\n".encode(),
    "vtt": f"WEBVTT\n\n00:01.000 --> 00:02.000\n<v Bob>{SECRET}</v>\n".encode(),
    "docx": word(f"<w:p>{RUN}{FIELD.format('begin')}{FIELD.format('end')}<w:hyperlink>{RUN}</w:hyperlink></w:p>"),
    "pptx": slides(f"<a:p><a:r><a:rPr/><a:t>{SECRET} a</a:t></a:r><a:endParaRPr/></a:p>"),
    "xlsx": workbook(f"<si><t>{SECRET} a</t></si><si><r><t>b</t></r></si>", '<table><tableColumn name="c"/></table>'),
    "odt": open_text(f"<t:p>{SECRET} <t:span>a</t:span><t:tab/></t:p>"),
    "epub": book(f"<html><body><p>{SECRET} &nbsp; <i>a</i></p></body></html>"),
    "po": f'msgid ""\nmsgstr "Plural-Forms: nplurals=2; plural=n;"\n\nmsgid "{SECRET}"\nmsgstr ""\n'.encode(),
    "xliff": xliff(f"<trans-unit id='1'><source>{SECRET} <g id='1'>a</g></source></trans-unit>"),
}


def read_and_write(suffix: str, data: bytes) -> bool:
    """Read a document and write it, as the process does. Returns whether it was accepted."""
    request = {"suffix": suffix, "bytes": len(data), "translations": None, "target_lang": "fr"}
    documents = Documents()
    try:
        _, content = documents.work(request, data, b"")
        units = [text for line in content.splitlines() for text in json.loads(line)[1]]
        lines = text_lines(units[::-1] if all(map(str.isalpha, units)) else units)
        kept = documents.work(request | {"translations": len(lines)}, data, lines)
        parsed_again = documents.work(request | {"translations": len(lines)}, data, lines)
        assert kept == parsed_again or suffix in ("docx", "pptx", "xlsx", "odt", "epub")  # an archive has a time
    except DocumentError as error:
        assert SECRET not in str(error)
        return False
    except RecursionError:  # the process refuses the document
        return False
    return True


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A file with some bytes changed, left out, repeated, or replaced by dangerous ones."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(changed) or 1)
        match rng.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del changed[at : at + rng.randrange(1, 40)]
            case 2:
                changed[at:at] = changed[at : at + rng.randrange(1, 40)] * rng.choice((1, 3, 50))
            case 3:
                changed[at:at] = rng.choice(
                    (b"<", b">", b"&", b'"', b"\\", b"\0", b"\xff", b"\n\n", b"*", b"|", b"]]>")
                )
            case _:
                changed = changed[:at] or changed
    return bytes(changed)


def unpacked(suffix: str, data: bytes, rng: random.Random) -> bytes:
    """A file whose damage is inside of a member, if it is an archive, in half of the cases."""
    if data[:2] != b"PK" or rng.random() < 0.5:
        return damaged(data, rng)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members: dict[str, str | bytes] = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice([*members])
    content = members[name]
    members[name] = damaged(content if isinstance(content, bytes) else content.encode(), rng)
    return zipped(members)


@pytest.mark.parametrize("suffix", VALID)
def test_damaged_documents_raise_no_other_error(suffix: str) -> None:
    assert read_and_write(suffix, VALID[suffix])
    rng = random.Random(suffix)
    outcomes = {read_and_write(suffix, unpacked(suffix, VALID[suffix], rng)) for _ in range(400)}
    assert True in outcomes


def _with_size(data: bytes, size: int) -> bytes:
    """An archive whose directory states another unpacked size of its last member."""
    at = data.rindex(b"PK\1\2") + 24
    return data[:at] + struct.pack("<I", size) + data[at + 4 :]


def _deep(opening: str, closing: str, count: int) -> str:
    return opening * count + SECRET + closing * count


HOSTILE: dict[str, tuple[str, bytes]] = {
    "docx, nested 200 deep": ("docx", word(f"<w:p>{_deep('<w:hyperlink>', '</w:hyperlink>', 200)}</w:p>")),
    "docx, nested 100,000 deep": ("docx", word(f"<w:p>{_deep('<w:ins>', '</w:ins>', 100_000)}</w:p>")),
    "docx, fields that never end": ("docx", word(f"<w:p>{RUN}{FIELD.format('begin') * 9}</w:p>")),
    "docx, fields that end first": ("docx", word(f"<w:p>{FIELD.format('end')}{FIELD.format('begin')}{RUN}</w:p>")),
    "docx, 2,000 fields in each other": (
        "docx",
        word(f"<w:p>{FIELD.format('begin') * 2000}{RUN}{FIELD.format('end') * 2000}</w:p>"),
    ),
    "docx, 2,000 links in each other": ("docx", word(f"<w:p>{LINK * 2000}{RUN}{FIELD.format('end') * 2000}</w:p>")),
    "docx, bookmarks without ids": ("docx", word(f"<w:p><w:bookmarkEnd/>{RUN}<w:bookmarkStart/></w:p>")),
    "docx, an entity": (
        "docx",
        zipped(
            {
                "[Content_Types].xml": "",
                "word/document.xml": '<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;">]><a>&d;</a>',
            }
        ),
    ),
    "docx, an external entity": (
        "docx",
        zipped(
            {
                "[Content_Types].xml": "",
                "word/document.xml": '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
            }
        ),
    ),
    "docx, packed with LZMA": ("docx", word(f"<w:p>{RUN}</w:p>", zipfile.ZIP_LZMA)),
    "docx, LZMA that is damaged": (
        "docx",
        word(f"<w:p>{RUN * 99}</w:p>", zipfile.ZIP_LZMA).replace(b"]\0\0", b"\xff\1\2"),
    ),
    "docx, BZIP2 that is damaged": (
        "docx",
        word(f"<w:p>{RUN * 99}</w:p>", zipfile.ZIP_BZIP2).replace(b"BZh9", b"BZh0"),
    ),
    "docx, a member of 4 GB": ("docx", _with_size(word(f"<w:p>{RUN}</w:p>"), 0xFFFFFFF0)),
    "docx, a member of one byte": ("docx", _with_size(word(f"<w:p>{RUN}</w:p>"), 1)),
    "docx, names that leave the archive": (
        "docx",
        zipped(
            {"[Content_Types].xml": "", "../../etc/passwd": "x", "/word/document.xml": "x", "word/document.xml": "<a/>"}
        ),
    ),
    "docx, names with NUL and backslashes": (
        "docx",
        zipped({"[Content_Types].xml": "", "word\\document.xml": "x", "word/document.xml": f"<a>{SECRET}</a>"}),
    ),
    "odt, nested 200 deep": ("odt", open_text(f"<t:p>{_deep('<t:span>', '</t:span>', 200)}</t:p>")),
    "odt, paragraphs in each other": ("odt", open_text(_deep("<t:p>a", "</t:p>", 100))),
    "epub, nested 5,000 deep": ("epub", book(f"<html>{_deep('<i>', '</i>', 5000)}</html>")),
    "html, nested 5,000 deep": ("html", _deep("<b>", "</b>", 5000).encode()),
    "html, tags that never close": ("html", (b"<b" * 50_000)),
    "html, an attribute that never closes": ("html", b'<a b="' + b"c" * 100_000),
    "md, emphasis 5,000 deep": ("md", ("*a _b " * 5000).encode()),
    "md, links in each other": ("md", ("[" * 5000 + "a" + "](b)" * 5000).encode()),
    "md, quotes 5,000 deep": ("md", (b"> " * 5000 + b"a\n") * 3),
    "md, a fence that never closes": ("md", b"```\n" * 2001),
    "json, nested 100,000 deep": ("json", b"[" * 100_000),
    "json, half of a pair": ("json", b'["\\ud800 a"]'),
    "json, numbers of 5,000 digits": ("json", b'["a", ' + b"9" * 5000 + b"]"),
    "srt, an arrow alone": ("srt", b"-->\n-->\n-->\n\n-->"),
    "vtt, tags in each other": ("vtt", b"WEBVTT\n\n00:01.000 --> 00:02.000\n" + b"<i>" * 5000 + b"a" + b"</i>" * 5000),
    "po, plural forms of billions": (
        "po",
        b'msgid ""\nmsgstr "Plural-Forms: nplurals=999999999;"\n\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n',
    ),
    "po, an unknown character set": (
        "po",
        b'msgid ""\nmsgstr "Content-Type: text; charset=rot13\\n"\n\nmsgid "a"\n',
    ),
    "xliff, nested 200 deep": (
        "xliff",
        xliff(f"<trans-unit><source>{_deep('<g>', '</g>', 200)}</source></trans-unit>"),
    ),
    "xliff, a source in itself": ("xliff", xliff("<trans-unit><source>a<source>b</source></source></trans-unit>")),
    "utf-16 that ends in the middle": ("txt", b"\xff\xfea"),
    "nothing": ("docx", b""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_documents_raise_no_other_error(name: str) -> None:
    read_and_write(*HOSTILE[name])


@pytest.fixture(scope="module")
def reader() -> Iterator[DocumentReader]:
    found = DocumentReader()
    yield found
    found.close()


def test_the_process_goes_on(reader: DocumentReader, monkeypatch: pytest.MonkeyPatch) -> None:
    reader.read("txt", b"a")
    pid = reader._process.pid
    for suffix, data in HOSTILE.values():
        try:
            reader.read(suffix, data)
        except DocumentError as error:
            assert SECRET not in str(error)
    assert reader._process.pid == pid
