"""Office documents and message catalogues.

The tests write and check them with python-docx and similar packages, where these are installed.
"""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest

pytest.importorskip("lxml")

from server.text.documents.units import DocumentError
from server.text.documents.xml_tree import parse_xml
from tests.text.documents.test_archives import zipped
from tests.text.documents.translating import read, translated, upper

TYPES = '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>'
W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def saved(document: Any) -> bytes:
    output = io.BytesIO()
    document.save(output)
    return output.getvalue()


def word(paragraph: str) -> bytes:
    return zipped(**{"[Content_Types].xml": TYPES, "word/document.xml": f"<w:document {W}>{paragraph}</w:document>"})


def part_of(data: bytes, name: str = "word/document.xml") -> str:
    return zipfile.ZipFile(io.BytesIO(data)).read(name).decode()


def body(data: bytes) -> str:
    text = part_of(data)
    return text[text.index("<w:p>") : text.rindex("</w:document>")]


def test_a_document_of_word() -> None:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_heading("A heading", 1)
    paragraph = document.add_paragraph("We like the ")
    paragraph.add_run("red").bold = True
    paragraph.add_run(" house.")
    table = document.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "one", "42"
    document.sections[0].header.paragraphs[0].text = "a header"
    document.add_comment(paragraph.runs[0], "a comment", "me")
    found = docx.Document(io.BytesIO(translated("a.docx", saved(document))))
    assert [found_paragraph.text for found_paragraph in found.paragraphs] == ["A HEADING", "WE LIKE THE RED HOUSE."]
    assert [(run.text, bool(run.bold)) for run in found.paragraphs[1].runs if run.text] == [
        ("WE LIKE THE ", False),
        ("RED", True),
        (" HOUSE.", False),
    ]
    assert found.paragraphs[0].style.name == "Heading 1"
    assert [cell.text for cell in found.tables[0].rows[0].cells] == ["ONE", "42"]
    assert found.sections[0].header.paragraphs[0].text == "A HEADER"
    assert [comment.text for comment in found.comments] == ["a comment"]


def test_runs_that_look_the_same_are_one_text() -> None:
    runs = '<w:r w:rsidR="1"><w:rPr><w:lang w:val="en-US"/></w:rPr><w:t>sp</w:t></w:r><w:proofErr w:type="spellStart"/>'
    runs += "<w:r><w:t>lit wo</w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>rd</w:t></w:r>"
    document = read("a.docx", word(f"<w:p>{runs}</w:p>"))
    assert [unit.text for unit in document.units] == ['split wo<g id="0">rd</g>']


def test_what_no_reader_sees_divides_no_text() -> None:
    fonts = '<w:r><w:rPr><w:rFonts w:hint="eastAsia"{}/></w:rPr><w:t>{}</w:t></w:r>'
    plain = "<w:r><w:t>Word</w:t></w:r>"
    document = read("a.docx", word(f"<w:p>{fonts.format('', chr(0x7528))}{plain}</w:p>"))
    assert [unit.text for unit in document.units] == ["\u7528Word"]
    arial = fonts.format(' w:ascii="Arial"', "a")
    assert read("a.docx", word(f"<w:p>{plain}{arial}</w:p>")).units[0].text == 'Word<g id="0">a</g>'
    name = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
    run = "<a:r><a:rPr {}/><a:t>{}</a:t></a:r>"
    runs = run.format('lang="en-US" dirty="0" smtClean="0"', "The d") + run.format('lang="de"', "og")
    slide = f"<p:sld xmlns:p='p' {name}><a:p>{runs}</a:p></p:sld>"
    data = zipped(**{"[Content_Types].xml": TYPES, "ppt/slides/slide1.xml": slide})
    assert [unit.text for unit in read("a.pptx", data).units] == ["The dog"]


def test_a_word_with_its_reading_is_text_without_the_reading() -> None:
    """Japanese and Chinese documents have small letters above a word, which say how it is read."""
    base = "<w:r><w:rPr>{}</w:rPr><w:t>word</w:t></w:r>"
    ruby = f"<w:ruby><w:rubyPr/><w:rt><w:r><w:t>reading</w:t></w:r></w:rt><w:rubyBase>{base}</w:rubyBase></w:ruby>"
    runs = "<w:r><w:t>A </w:t></w:r><w:r><w:rPr><w:b/></w:rPr>{}</w:r><w:r><w:t> here</w:t></w:r>"
    plain, bold = (word(f"<w:p>{runs.format(ruby.format(look))}</w:p>") for look in ("", "<w:b/>"))
    assert [read("a.docx", data).units[0].text for data in (plain, bold)] == [
        "A word here",
        'A <g id="0">word</g> here',
    ]
    assert body(translated("a.docx", bold)) == (
        '<w:p><w:r><w:t xml:space="preserve">A </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>WORD</w:t></w:r>'
        '<w:r><w:t xml:space="preserve"> HERE</w:t></w:r></w:p>'
    )
    assert body(read("a.docx", bold).write(['A <g id="0">word</g> here'], "fr")).count("reading") == 1


def test_formatting_without_text_stays() -> None:
    """A translation may have fewer words than the source has formatted runs."""
    runs = "<w:r><w:t>We like </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>it</w:t></w:r>"
    document = read("a.docx", word(f"<w:p>{runs}</w:p>"))
    assert body(document.write(['Si <g id="0"></g>'], "es")) == (
        '<w:p><w:r><w:t xml:space="preserve">Si </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t></w:t></w:r></w:p>'
    )


def test_links_fields_and_marks_stay() -> None:
    field = '<w:r><w:fldChar w:fldCharType="{}"/></w:r>'
    instruction = "<w:r><w:instrText>{}</w:instrText></w:r>"
    parts = [
        "<w:pPr><w:jc/></w:pPr>",
        '<w:bookmarkStart w:id="1"/><w:r><w:t>see </w:t></w:r><w:bookmarkEnd w:id="1"/>',
        '<w:hyperlink w:anchor="x"><w:r><w:rPr><w:rStyle w:val="L"/></w:rPr><w:t>here</w:t></w:r></w:hyperlink>',
        "<w:r><w:tab/></w:r>",
        field.format("begin") + instruction.format("PAGE") + field.format("separate"),
        "<w:r><w:t>one</w:t></w:r>" + field.format("end"),
        field.format("begin") + instruction.format('HYPERLINK "u"') + field.format("separate"),
        "<w:r><w:t>two</w:t></w:r>" + field.format("end"),
    ]
    source = f"<w:p>{''.join(parts)}</w:p>"
    found = body(translated("a.docx", word(source)))
    expected = source.replace("see ", "SEE ").replace("here", "HERE").replace("two", "TWO")
    assert found.replace(' xml:space="preserve"', "") == expected


def test_a_paragraph_with_half_a_field_stays() -> None:
    source = '<w:p><w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:t>a</w:t></w:r></w:p>'
    assert body(translated("a.docx", word(source))) == source


def test_the_end_of_a_bookmark_follows_its_beginning() -> None:
    document = read(
        "a.docx", word('<w:p><w:bookmarkStart w:id="1"/><w:r><w:t>a b</w:t></w:r><w:bookmarkEnd w:id="1"/></w:p>')
    )
    assert document.units[0].text == '<x id="0"/>a b<x id="1"/>'
    found = body(document.write(['<x id="1"/>b a<x id="0"/>'], "fr"))
    assert found.index("bookmarkStart") < found.index("bookmarkEnd")


def test_a_presentation() -> None:
    pptx = pytest.importorskip("pptx")
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[1])
    slide.shapes.title.text = "A title"
    run = slide.placeholders[1].text_frame.paragraphs[0].add_run()
    run.text, run.font.italic = "an item", True
    slide.notes_slide.notes_text_frame.text = "a note"
    found = pptx.Presentation(io.BytesIO(translated("a.pptx", saved(presentation)))).slides[0]
    assert found.shapes.title.text == "A TITLE"
    (only,) = found.placeholders[1].text_frame.paragraphs[0].runs
    assert (only.text, only.font.italic) == ("AN ITEM", True)
    assert found.notes_slide.notes_text_frame.text == "A NOTE"


def test_a_workbook() -> None:
    openpyxl = pytest.importorskip("openpyxl")
    from openpyxl.worksheet.table import Table

    book = openpyxl.Workbook()
    sheet = book.active
    for row in (["Name", "Value"], ["a cell", 3.5], ["=A2", "Name"]):
        sheet.append(row)
    sheet.add_table(Table(displayName="t", ref="A1:B2"))
    found = openpyxl.load_workbook(io.BytesIO(translated("a.xlsx", saved(book)))).active
    cells = [[cell.value for cell in row] for row in found.iter_rows()]
    assert cells == [["Name", "Value"], ["A CELL", 3.5], ["=A2", "Name"]]
    assert found.title == sheet.title and list(found.tables) == ["t"]


def test_a_cell_with_formatting() -> None:
    name = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    strings = f"<sst {name}><si><r><t>a </t></r><r><rPr><b/></rPr><t>b</t></r></si><si><t>c</t></si></sst>"
    data = zipped(**{"[Content_Types].xml": TYPES, "xl/sharedStrings.xml": strings})
    document = read("a.xlsx", data)
    assert [unit.text for unit in document.units] == ['a <g id="0">b</g>', "c"]
    found = zipfile.ZipFile(io.BytesIO(translated("a.xlsx", data))).read("xl/sharedStrings.xml").decode()
    assert '<r><t xml:space="preserve">A </t></r><r><rPr><b/></rPr><t>B</t></r></si><si><t>C</t></si>' in found


@pytest.mark.parametrize(
    ("content", "text", "translation", "written"),
    [
        ("<t>One\nTwo</t>", 'One<p id="0"/>Two', 'Un<p id="0"/>Deux', "<t>Un\nDeux</t>"),
        ("<t>One_x000D_\nand two</t>", 'One<br id="0"/>and two', 'Un<br id="0"/>et deux', "<t>Un\net deux</t>"),
        (
            "<r><t>a_x000D_B</t></r><r><rPr><b/></rPr><t>c\n</t></r>",
            'a<p id="0"/>B<g id="1">c<p id="2"/></g>',
            'x<p id="0"/>Y <g id="1">z<p id="2"/></g>',
            '<r><t xml:space="preserve">x\nY </t></r><r><rPr><b/></rPr><t xml:space="preserve">z\n</t></r>',
        ),
    ],
)
def test_line_breaks_in_cells_stay(content: str, text: str, translation: str, written: str) -> None:
    name = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    strings = f"<sst {name}><si>{content}</si></sst>"
    document = read("a.xlsx", zipped(**{"[Content_Types].xml": TYPES, "xl/sharedStrings.xml": strings}))
    assert [unit.text for unit in document.units] == [text]
    found = part_of(document.write([translation], "fr"), "xl/sharedStrings.xml")
    assert found.partition("<si>")[2] == f"{written}</si></sst>"


def test_a_text_of_open_document() -> None:
    opendocument = pytest.importorskip("odf.opendocument")
    from odf.office import Annotation
    from odf.text import A, H, LineBreak, Note, NoteBody, NoteCitation, P, Span

    document = opendocument.OpenDocumentText()
    document.text.addElement(H(outlinelevel=1, text="A heading"))
    paragraph = P(text="We ")
    paragraph.addElement(Span(text="like"))
    paragraph.addText(" the ")
    paragraph.addElement(A(href="https://example.com", text="house"))
    paragraph.addElement(LineBreak())
    note = Note(noteclass="footnote")
    note.addElement(NoteCitation(text="i"))
    inner = NoteBody()
    inner.addElement(P(text="a note"))
    note.addElement(inner)
    paragraph.addElement(note)
    comment = Annotation()
    comment.addElement(P(text="a comment"))
    paragraph.addElement(comment)
    document.text.addElement(paragraph)
    found = opendocument.load(io.BytesIO(translated("a.odt", saved(document))))
    assert [str(element) for element in found.getElementsByType(H)] == ["A HEADING"]
    paragraphs = list(map(str, found.getElementsByType(P)))
    assert paragraphs[0] == "WE LIKE THE HOUSEiA NOTEa comment"
    assert [str(element) for element in found.getElementsByType(Span)] == ["LIKE"]
    assert found.getElementsByType(A)[0].getAttribute("href") == "https://example.com"


OPEN_STYLES = """<o:automatic-styles>
<s:style s:name="T1" s:family="text"><s:text-properties l:rsid="001"/></s:style>
<s:style s:name="T2" s:family="text"><s:text-properties f:font-weight="bold" l:rsid="001"/></s:style>
<s:style s:name="T3" s:family="text"><s:text-properties l:rsid="002" f:font-weight="bold" f:language="en"/></s:style>
<s:style s:name="T4" s:family="text" s:parent-style-name="Quote"><s:text-properties l:rsid="001"/></s:style>
<s:style s:name="P1" s:family="paragraph"><s:text-properties l:rsid="003"/></s:style>
</o:automatic-styles>"""


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('The <t:span t:style-name="T1">d</t:span>og <t:span t:style-name="T1">sleeps</t:span>.', "The dog sleeps."),
        (
            '<t:span t:style-name="T2">The d</t:span><t:span t:style-name="T3">og<t:tab/></t:span><t:span '
            't:style-name="T2"> sleeps</t:span>.',
            '<g id="0">The dog<br id="1"/> sleeps</g>.',
        ),
        (
            '<t:span t:style-name="T2">a</t:span> <t:span t:style-name="T3">b</t:span>',
            '<g id="0">a</g> <g id="1">b</g>',
        ),
        (
            '<t:span t:style-name="T4">a</t:span><t:span t:style-name="Emphasis">b</t:span><t:span>c</t:span>',
            '<g id="0">a</g><g id="1">b</g><g id="2">c</g>',
        ),
        (
            '<t:span t:style-name="T1">a<t:span t:style-name="T2">b</t:span></t:span>'
            '<t:span t:style-name="T3">c</t:span>d',
            'a<g id="0">bc</g>d',
        ),
        (
            'a<t:ruby t:style-name="R"><t:ruby-base>b<t:span t:style-name="T2">c</t:span></t:ruby-base>'
            "<t:ruby-text>reading</t:ruby-text></t:ruby>d",
            'ab<g id="0">c</g>d',
        ),
    ],
)
def test_spans_of_open_document_that_look_alike_are_one_text(content: str, text: str) -> None:
    """Programs divide a text into spans that differ in the number of the editing session alone."""
    names = "".join(
        f' xmlns:{prefix}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for prefix, name in {"t": "text", "o": "office", "s": "style", "f": "xsl-fo-compatible"}.items()
    )
    xml = (
        f'<o:document-content{names} xmlns:l="http://openoffice.org/2009/office">{OPEN_STYLES}<o:body>'
        f"<t:p>{content}</t:p></o:body></o:document-content>"
    )
    data = zipped(**{"META-INF/manifest.xml": "<m/>", "content.xml": xml})
    assert [unit.text for unit in read("a.odt", data).units] == [text]


def test_a_strict_file_keeps_its_namespace() -> None:
    """Word and Excel can save files in the strict variant of the standard, which has other namespaces."""
    strict = "http://purl.oclc.org/ooxml/wordprocessingml/main"
    xml = (
        f'<w:document xmlns:w="{strict}"><w:body><w:p><w:r><w:t>a </w:t></w:r>'
        "<w:r><w:rPr><w:b/></w:rPr><w:t>b</w:t></w:r></w:p></w:body></w:document>"
    )
    found = part_of(translated("a.docx", zipped(**{"[Content_Types].xml": TYPES, "word/document.xml": xml})))
    assert found.count(strict) == 1 and "schemas.openxmlformats.org" not in found
    assert '<w:t xml:space="preserve">A </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>B</w:t>' in found
    strict = "http://purl.oclc.org/ooxml/spreadsheetml/main"
    strings = f'<sst xmlns="{strict}"><si><t>c</t></si></sst>'
    data = zipped(**{"[Content_Types].xml": TYPES, "xl/sharedStrings.xml": strings})
    found = part_of(translated("a.xlsx", data), "xl/sharedStrings.xml")
    assert found.endswith(f'<sst xmlns="{strict}"><si><t>C</t></si></sst>')


TEMPLATE = b"""msgid ""
msgstr ""
"Language: \\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\\n"

#, fuzzy, c-format
#| msgid "old"
msgid "new"
msgstr "vieux"

msgid "a file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""
"""


@pytest.mark.parametrize(
    ("language", "forms"),
    [("fr", ["A FILE", "%D FILES"]), ("ru", ["A FILE", "%D FILES", "%D FILES"]), ("ja", ["%D FILES"])],
)
def test_a_template_of_gettext_gets_the_plural_forms_of_the_language(language: str, forms: list[str]) -> None:
    pytest.importorskip("translate")
    document = read("a.pot", TEMPLATE)
    found = document.write([upper(unit) for unit in document.units], language).decode()
    assert f'"Language: {language}\\n"' in found and f"nplurals={len(forms)};" in found
    assert "".join(f'msgstr[{index}] "{form}"\n' for index, form in enumerate(forms)) in found
    assert f"msgstr[{len(forms)}]" not in found
    assert '#, c-format\nmsgid "new"\nmsgstr "NEW"' in found, "a fuzzy message is translated anew"
    assert not read("a.po", found).units


def test_messages_of_gettext() -> None:
    pytest.importorskip("translate")
    source = b"""# a note
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=3; plural=n;\\n"

#, c-format
#: a.c:1
msgctxt "c"
msgid "%s is here"
msgstr ""

msgid "done"
msgstr "fertig"

msgid "a file"
msgid_plural "files"
msgstr[0] ""
msgstr[1] ""
msgstr[2] ""
"""
    found = translated("a.po", source).decode()
    assert 'msgid "%s is here"\nmsgstr "%S IS HERE"' in found and 'msgstr "fertig"' in found
    assert 'msgstr[0] "A FILE"\nmsgstr[1] "FILES"\nmsgstr[2] "FILES"' in found
    assert "#: a.c:1" in found and "# a note" in found and 'msgctxt "c"' in found
    with pytest.raises(DocumentError, match="gettext"):
        read("a.po", b"\xff\xfe\x00msg")


def test_xliff() -> None:
    old = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en"><body>
<trans-unit id="1"><source>We <g id="1">like</g> <x id="2"/> it</source></trans-unit>
<trans-unit id="2" translate="no"><source>no</source></trans-unit>
<trans-unit id="3" approved="yes"><source>a</source><target>b</target></trans-unit></body></file></xliff>"""
    found = parse_xml(translated("a.xlf", old))
    units = list(found.iter("{*}trans-unit"))
    assert "".join(units[0][0].itertext()) == "We like  it" and "".join(units[0][1].itertext()) == "WE LIKE  IT"
    assert [unit.tag.rpartition("}")[2] for unit in units[0][1]] == ["g", "x"]
    assert units[0][1].get("state") == "needs-review-translation" and len(units[1]) == 1 and units[2][1].text == "b"
    assert next(found.iter("{*}file")).get("target-language") == "fr"
    new = """<xliff version="2.0" srcLang="en" xmlns="urn:oasis:names:tc:xliff:document:2.0"><file id="f"><unit id="u">
<segment><source>A <pc id="1">b</pc><ph id="2"/></source></segment></unit></file></xliff>"""
    found = parse_xml(translated("a.xliff", new))
    segment = next(found.iter("{*}segment"))
    assert "".join(segment[1].itertext()) == "A B" and segment.get("state") == "translated"
    assert found.get("trgLang") == "fr"


def test_xml_that_grows_or_reads_files_is_refused() -> None:
    lol = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
    bomb = f'<!DOCTYPE x [<!ENTITY l0 "lol">{lol}]><xliff><source>&l9;</source></xliff>'
    file = '<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><xliff>&f;</xliff>'
    for data in (bomb, file, "<xliff>", "<a/>", "<xliff>" * 1000, "<x>" * 5000 + "</x>" * 5000):
        with pytest.raises(DocumentError):
            read("a.xliff", data)
