"""Small documents that would take hours or gigabytes to read are refused, and the next document is read normally."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.text.documents import document_process
from server.text.documents.formats import FORMATS
from server.text.documents.markdown import _TABLE_RULE
from server.text.documents.reader import DocumentReader
from server.text.documents.subtitles import _wrapped
from server.text.documents.unit_lines import KINDS, read_text_lines, read_unit_lines, text_lines, unit_lines
from server.text.documents.units import Document, DocumentError, TextUnit

EMPHASIS = b"*a " * 300_000
"""Markdown in which every asterisk may begin emphasis. To search the rest for its end each time would take hours."""
WORD = '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>{}</w:body></w:document>'


@pytest.fixture(scope="module")
def reader() -> Iterator[DocumentReader]:
    made = DocumentReader(cpu_seconds=3.0, memory_bytes=300 << 20)
    yield made
    made.close()


def word(content: str) -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("word/document.xml", WORD.format(content))
    return output.getvalue()


def test_a_document_is_read_and_written(reader: DocumentReader) -> None:
    data = "# Häuser & *Gärten*\n\n12\n".encode()
    texts = reader.read("md", data)
    assert [unit.text for unit in texts.units] == ['Häuser &amp; <g id="0">Gärten</g>']
    assert texts.characters == len(texts.units[0].text) and texts.has_text
    assert texts.num_bytes == len(texts.units[0].text.encode())
    written = reader.write("md", data, ['<g id="0">gardens</g> and houses'], "en")
    assert written.decode() == "# *gardens* and houses\n\n12\n"
    assert not reader.read("txt", b"12\n34\n").has_text


def test_the_document_that_was_read_last_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept until it is written or another one is read, and only while the process needs little memory."""
    parsed: list[bytes] = []

    def read(data: bytes) -> Document:
        parsed.append(data)
        return read_text(data)

    read_text = document_process.FORMATS["txt"].read
    monkeypatch.setitem(document_process.FORMATS, "txt", document_process.FORMATS["txt"]._replace(read=read))
    memory = [document_process.KEPT_MEMORY_BYTES]
    monkeypatch.setattr(document_process, "_peak_memory", lambda: memory[-1])
    documents = document_process.Documents()

    def ask(data: bytes, translation: str | None = None) -> bytes:
        lines = None if translation is None else text_lines([translation])
        request = {"suffix": "txt", "translations": None if lines is None else len(lines), "target_lang": "fr"}
        return documents.work(request, data, lines or b"")[1]

    ask(b"one")
    assert ask(b"one", "un") == b"un" and parsed == [b"one"]
    assert ask(b"one", "une") == b"une" and parsed == [b"one", b"one"]
    ask(b"one")
    ask(b"two")
    assert ask(b"one", "un") == b"un" and parsed[3:] == [b"two", b"one"]
    memory.append(document_process.KEPT_MEMORY_BYTES + 1)
    ask(b"one")
    assert ask(b"one", "un") == b"un" and parsed[5:] == [b"one", b"one"]


@pytest.mark.parametrize(
    ("suffix", "data"), [("md", EMPHASIS), ("md", b"a <!-- " * 300_000), ("docx", word("<w:p/>" * 3_000_000))]
)
def test_a_document_that_takes_too_much_is_refused(reader: DocumentReader, suffix: str, data: bytes) -> None:
    if suffix == "docx":
        pytest.importorskip("lxml")
    with pytest.raises(DocumentError, match="3 s of processor time or 300 MiB of memory"):
        reader.read(suffix, data)
    assert [unit.text for unit in reader.read("txt", b"next").units] == ["next"]


@pytest.mark.parametrize(
    ("suffix", "data", "message"),
    [
        ("docx", b"no archive", "no zip archive"),
        ("json", b'{"a": "x\\ud800"}', "half of a surrogate pair"),
        ("json", b'{"a": ' + b"[" * 100_000, "not JSON"),
        (
            "xliff",
            b'<xliff version="1.2"><trans-unit>' + b"<source>a</source>" * 200_000 + b"</trans-unit></xliff>",
            "several sources",
        ),
    ],
)
def test_a_damaged_document_is_refused_with_its_reason(
    reader: DocumentReader, suffix: str, data: bytes, message: str
) -> None:
    if suffix in ("docx", "xliff"):
        pytest.importorskip("lxml")
    with pytest.raises(DocumentError, match=message):
        reader.read(suffix, data)


def test_the_number_of_plural_forms_is_that_of_a_language() -> None:
    """The header of a catalogue may state billions of plural forms, each of which would be a text to translate."""
    pytest.importorskip("translate")
    header = (
        'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: nplurals={}; plural=0;\\n"\n'
    )
    message = '\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n'
    for stated, forms in (("999999999999", 2), ("4", 4)):
        document = FORMATS["po"].read((header.format(stated) + message).encode())
        written = document.write(["x", "y"], "de")
        assert written.count(b"msgstr[") == forms


def test_a_rule_of_a_table_is_found_in_a_time_that_grows_with_the_line() -> None:
    """With time quadratic in the length of the line, these lines would take hours."""
    for line in (" " * 500_000 + "x", "-|" + " " * 500_000 + "x", "-|" * 250_000 + "x", "|" * 500_000 + "x"):
        assert _TABLE_RULE.match(line) is None
    for line in ("|---|---|", "--- | :-: | --:", ":--|", " | - || - |", "-|\n", "| :- |:|"):
        assert _TABLE_RULE.match(line), line
    for line in ("---", "| a |", "|", "| |", "--|-a"):
        assert not _TABLE_RULE.match(line), line


def test_a_long_word_and_a_long_table_are_read() -> None:
    assert len(FORMATS["md"].read(b"a" * 500_000).units) == 1
    assert len(FORMATS["md"].read(b"a|\n" * 20_000).units) == 1
    assert len(FORMATS["md"].read(b"a|b\n-|-\n" + b"c|d\n" * 20_000).units) == 40_002


def test_a_subtitle_of_long_words_is_wrapped() -> None:
    first, second, third = "a" * 80_000, "b" * 80_000, "c" * 40_000
    assert _wrapped(f"{first} {second} {third}", 2) == [first, f"{second} {third}"]


@given(st.lists(st.tuples(st.text(max_size=5), st.sampled_from(KINDS)), max_size=9))
def test_texts_pass_between_the_processes(texts: list[tuple[str, object]]) -> None:
    units = [TextUnit(text, kind) for text, kind in texts]  # type: ignore[arg-type]
    if any(map("\ud800".__le__, "".join(text for text, _ in texts))) and not _is_unicode(texts):
        with pytest.raises(DocumentError):
            unit_lines(units)
        return
    assert list(read_unit_lines(unit_lines(units))) == units
    plain = [unit.text for unit in units]
    assert list(read_text_lines(text_lines(plain))) == plain


def _is_unicode(texts: list[tuple[str, object]]) -> bool:
    try:
        "".join(text for text, _ in texts).encode()
    except UnicodeEncodeError:
        return False
    return True
