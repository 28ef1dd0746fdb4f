"""Documents in text formats: lines, JSON, subtitles, Markdown and HTML. Only their texts are translated."""

from __future__ import annotations

import json

import pytest

from server.text.documents import inline, subtitles
from server.text.documents.formats import FORMATS, format_of
from server.text.documents.units import DocumentError
from tests.text.documents.translating import read, translated, upper

SUBTITLES = """1\r
00:00:01,000 --> 00:00:02,500\r
We like <i>the\r
red house</i>.\r
\r
2\r
00:00:03,000 --> 00:00:04,000\r
- Who is there?\r
- {\\an8}Nobody.\r
"""
WEB_SUBTITLES = """WEBVTT - a title

NOTE a comment

STYLE
::cue { color: red }

intro
00:01.000 --> 00:02.000 align:start
<v Ann>Hello <c.red>you</c></v> <00:01.500>there
"""
MARKDOWN = """---
title: front matter
---
# A title {#id}

A paragraph with **bold text**, `some code` and a [link](https://example.com "t")
that goes on.

- [ ] an item with *emphasis*
    continued
1. another ![image](a.png)

> a quotation

```python
code = "stays"
```

| Name | Value |
|------|------:|
| one  | `two` |

    indented code

[ref]: https://example.com
<div class="x"><p>Inner text</p></div>
"""


def test_lines() -> None:
    text = "The cat\r\n\r\n  sleeps.\n\n\tx"
    assert translated("a.txt", text).decode() == text.upper()
    assert translated("a.TXT", "\ufeffÄ b".encode("utf-16")).decode("utf-16").endswith("Ä B")
    with pytest.raises(DocumentError, match="UTF-8"):
        read("a.txt", b"\xe4\xe4")


def test_json_values() -> None:
    text = '{\n  "key" : "A \\"b\\" \\u00e9",\t"n": [1, "c", "", {"d":"e"}], "u": "ABC\\/"}\n'
    found = translated("a.json", text).decode()
    assert json.loads(found) == {"key": 'A "B" É', "n": [1, "C", "", {"d": "E"}], "u": "ABC/"}
    assert found.startswith('{\n  "key" : ') and found.endswith(', "u": "ABC\\/"}\n')
    for wrong in ('{"a": 1', "[" * 100_000):
        with pytest.raises(DocumentError, match="JSON"):
            read("a.json", wrong)


def test_subtitles() -> None:
    found = translated("a.srt", SUBTITLES).decode()
    assert found == SUBTITLES.replace("We like", "WE LIKE").replace("the\r\nred house", "THE\r\nRED HOUSE").replace(
        "Who is there", "WHO IS THERE"
    ).replace("Nobody", "NOBODY")
    web = translated("a.vtt", WEB_SUBTITLES).decode()
    assert web == WEB_SUBTITLES.replace("Hello ", "HELLO ").replace(">you<", ">YOU<").replace("there", "THERE")


def test_a_subtitle_is_wrapped_again() -> None:
    assert subtitles._wrapped("aa bb cc dd", 2) == ["aa bb", "cc dd"]
    assert subtitles._wrapped("a" * 30 + " b", 2) == ["a" * 30, "b"]
    assert subtitles._wrapped("one", 3) == ["one"]


SENTENCES = """1
00:00:01,000 --> 00:00:02,500
I think that we should go
to the house on the hill

2
00:00:02,500 --> 00:00:04,000
before the old king comes back.

3
00:00:05,000 --> 00:00:06,000
Because the dog sleeps here,

4
00:00:06,000 --> 00:00:07,000
and the cat

5
00:00:07,000 --> 00:00:08,000
<i>runs away.</i>
"""


def test_a_sentence_that_goes_on_in_the_next_subtitle_is_one_text() -> None:
    document = read("a.srt", SENTENCES)
    texts = [unit.text for unit in document.units]
    assert texts == [
        "I think that we should go to the house on the hill before the old king comes back.",
        "Because the dog sleeps here, and the cat",
        '<g id="0">runs away.</g>',
    ]
    assert document.write(texts, "fr").decode() == SENTENCES
    found = read("a.srt", SENTENCES).write(
        [
            "Je pense que nous devrions aller \u00e0 la maison sur la colline, avant que le vieux roi ne revienne.",
            "Parce que le chien dort ici, et le chat",
            '<g id="0">court.</g>',
        ],
        "fr",
    )
    cues = [block.splitlines()[2:] for block in found.decode().split("\n\n")]
    assert cues == [
        ["Je pense que nous devrions aller", "\u00e0 la maison sur la colline,"],
        ["avant que le vieux roi ne revienne."],
        ["Parce que le chien dort ici,"],
        ["et le chat"],
        ["<i>court.</i>"],
    ]


def test_a_character_that_xml_lacks_stays_in_its_sentence() -> None:
    file = "1\n00:01.000 --> 00:02.000\nThe dog sleeps in\n\n2\n00:02.000 --> 00:03.000\nthe \x01 garden\n"
    assert translated("a.vtt", file).decode() == file.replace("The dog sleeps in", "THE DOG SLEEPS IN").replace(
        "the \x01 garden", "THE \x01 GARDEN"
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("The dog sleeps in the garden.", "the cat runs."),
        ("The dog sleeps in the", "Garden of the king."),
        ("- The dog sleeps in\n- and the cat", "runs away"),
        ("<i>The dog sleeps in the</i>", "garden"),
        ("Hello you", "there"),
    ],
)
def test_subtitles_with_sentences_of_their_own_stay_apart(first: str, second: str) -> None:
    file = f"1\n00:01.000 --> 00:02.000\n{first}\n\n2\n00:02.000 --> 00:03.000\n{second}\n"
    assert read("a.vtt", file).units[-1].text == second


@pytest.mark.parametrize(
    ("text", "lengths", "parts"),
    [
        ("one two three four", [10, 10], ["one two", "three four"]),
        ("one two three four", [1, 100], ["one", "two three four"]),
        ("one two three four", [100, 1, 1], ["one two", "three", "four"]),
        ("yes, that is the old house", [10, 15], ["yes,", "that is the old house"]),
        ("\u5bb6\u5eadabcd", [2, 4], ["\u5bb6\u5ead", "abcd"]),
        ("one", [1, 1, 1], ["o", "n", "e"]),
        ("a", [1, 1, 1], ["a", "", ""]),
        ("", [1, 1], ["", ""]),
    ],
)
def test_a_translation_is_divided_among_subtitles(text: str, lengths: list[int], parts: list[str]) -> None:
    assert subtitles._divided(text, lengths) == parts


def test_markdown() -> None:
    found = translated("a.md", MARKDOWN).decode()
    kept = ("title: front matter", "`some code`", '](https://example.com "t")', "![image](a.png)", 'code = "stays"')
    for part in (*kept, "    indented code", "[ref]: https://example.com", '<div class="x"><p>', "|------|------:|"):
        assert part in found, part
    for part in ("# A TITLE", "**BOLD TEXT**", "[LINK]", "- [ ] AN ITEM WITH *EMPHASIS*", "> A QUOTATION"):
        assert part in found, part
    assert "| NAME | VALUE |" in found and "| ONE  | `two` |" in found and "<p>INNER TEXT</p>" in found
    assert len(found) == len(MARKDOWN) - 4  # the second line of the item loses its indentation


def test_markdown_that_no_translation_changes_stays() -> None:
    document = read("a.md", MARKDOWN)
    assert document.write([unit.text for unit in document.units], "fr").decode() == MARKDOWN


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("One is  \nred.", ['One is<br id="0"/>red.']),
        ("One is\\\nred.", ['One is<br id="0"/>red.']),
        ("*One*  \n*Two*\n", ['<g id="0">One</g><p id="1"/><g id="2">Two</g>']),
        ("**Date:** May<br>**Name:** x", ['<g id="0">Date:</g> May<p id="1"/><g id="2">Name:</g> x']),
        ("Eins ist  \nÄpfel  \n第二行", ['Eins ist<p id="0"/>Äpfel<p id="1"/>第二行']),
        ("- one<br/>and two", ['one<br id="0"/>and two']),
    ],
)
def test_hard_line_breaks_of_markdown(source: str, texts: list[str]) -> None:
    document = read("a.md", source)
    assert [unit.text for unit in document.units] == texts
    assert document.write([unit.text for unit in document.units], "fr").decode() == source


def test_html_pages() -> None:
    page = '<!doctype html><title>A one</title><p class="a">We <b>like</b> &amp; more.<br>Next<script>x()</script>'
    expected = page
    for text in ("one", "We", "like", "more", "Next"):
        expected = expected.replace(text, text.upper())
    assert translated("a.html", page).decode() == expected


def test_inline_formatting_is_restored() -> None:
    fragment = inline.Fragment()
    fragment.text("a < b & \x01")
    fragment.open(("*", "*"))
    fragment.text("c")
    fragment.close()
    fragment.atom("`d`")
    unit = fragment.unit()
    assert unit.text == 'a &lt; b &amp; <x id="0"/><g id="1">c</g><x id="2"/>'
    assert inline.text_of(fragment.restored(upper(unit))) == "A < B & \x01*C*`d`"
    assert inline.text_of(fragment.restored("x&#160;y")) == "x\xa0y"


def test_unknown_names() -> None:
    for name in ("a.exe", "txt", "", "a.docx.zip"):
        with pytest.raises(DocumentError, match=r"\.docx"):
            format_of(name)
    assert len(FORMATS) == 17


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("Text.[^1]\n\n[^1]: The note *here*.\n", "TEXT.[^1]\n\n[^1]: THE NOTE *HERE*.\n"),
        ("- an item\n  > quoted\n  > **too**\n", "- AN ITEM\n  > QUOTED\n**TOO**\n"),
        ("- item\n\n```\ncode\n```\n\n    code\n", "- ITEM\n\n```\ncode\n```\n\n    code\n"),
        ("Term\n: Definition\n", "TERM\n: DEFINITION\n"),
        (
            "$$\nx = y\n$$\nwith $x^2$ and $$a + b$$, or $5 and $6.\n",
            "$$\nx = y\n$$\nWITH $x^2$ AND $$a + b$$, OR $5 AND $6.\n",
        ),
        ("$$ is money\n\nx\n", "$$ IS MONEY\n\nX\n"),
        ("::: tip Title\ntext\n:::\n", "::: tip Title\nTEXT\n:::\n"),
        ("> [!NOTE]\n> text\n", "> [!NOTE]\n> TEXT\n"),
        ('!!! note "Title"\n    text\n', '!!! note "Title"\n    TEXT\n'),
    ],
)
def test_blocks_of_markdown(source: str, expected: str) -> None:
    assert translated("a.md", source).decode() == expected


def test_marks_around_nothing_are_left_out() -> None:
    """Markdown would show them as text. Links stay."""
    document = read("a.md", "one **two _three_** [four](u)")
    assert document.units[0].text == 'one <g id="0">two <g id="1">three</g></g> <g id="2">four</g>'
    assert document.write(['uno <g id="0"><g id="1"></g></g><g id="2"></g>'], "es") == b"uno [](u)"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("A [link] and [x].\n\n[link]: u\n", "A [LINK][link] AND [X].\n\n[link]: u\n"),
        ("A [Two  Words][], too.\n\n[two words]: u\n", "A [TWO  WORDS][Two  Words], TOO.\n\n[two words]: u\n"),
        ("See [`Vec`] and [a *b] c*.\n\n[`vec`]: u\n", "SEE [`Vec`][`Vec`] AND [A *B] C*.\n\n[`vec`]: u\n"),
        ("A ![logo].\n\n[logo]: a.png\n", "A ![LOGO][logo].\n\n[logo]: a.png\n"),
        ("A [text][label].\n\n[label]: u\n", "A [TEXT][label].\n\n[label]: u\n"),
        ("[a](u) and [b]\n", "[A](u) AND [B]\n"),
        (
            "See [[A note]] and [[A note|this one]], ![[a.png]].\n",
            "SEE [[A note]] AND [[A note|THIS ONE]], ![[a.png]].\n",
        ),
        ("[[1]](u)\n", "[[1]](U)\n"),
        ("# Title {#my-title .big k=v}\n\nText\n{: .note }\n", "# TITLE {#my-title .big k=v}\n\nTEXT\n{: .note }\n"),
        ("Hugo {{ .Site.Title }} stays\n", "HUGO {{ .SITE.TITLE }} STAYS\n"),
        ("[TOC]\n\n[[_TOC_]]\n\na\n", "[TOC]\n\n[[_TOC_]]\n\nA\n"),
        ("[![Build](b.svg)](u) [![x][y]][z] text\n", "[![Build](b.svg)](u) [![x][y]][z] TEXT\n"),
        ("import Tabs from '@theme/Tabs';\n\na\n", "import Tabs from '@theme/Tabs';\n\nA\n"),
        ("<!-- one\n\ntwo -->\n\na\n", "<!-- one\n\ntwo -->\n\nA\n"),
        ("<pre>\none\n\ntwo</pre>\n\na\n", "<pre>\none\n\ntwo</pre>\n\nA\n"),
        ("<p>one\n\ntwo\n", "<p>ONE\n\nTWO\n"),
        ("<!-- never closed\n\ntwo\n", "<!-- never closed\n\nTWO\n"),
    ],
)
def test_references_and_attributes_of_markdown(source: str, expected: str) -> None:
    assert translated("a.md", source).decode() == expected
    document = read("a.md", source)
    assert document.write([unit.text for unit in document.units], "fr").decode() == source


PAGE = "<html><head><meta {}></head><body><p>{}</p></body></html>"


@pytest.mark.parametrize(
    ("declaration", "encoding", "text"),
    [
        ('charset="windows-1252"', "cp1252", "caf\u00e9 \u20ac"),
        ('http-equiv="Content-Type" content="text/html; charset=ISO-8859-1"', "cp1252", "caf\u00e9 \u20ac"),
        ("charset=windows-1251", "cp1251", "\u0434\u043e\u043c"),
        ("charset='Shift_JIS'", "cp932", "\u5bb6"),
        ("charset=gb2312", "gb18030", "\u5bb6"),
        ("charset=utf-8", "utf-8", "\u5bb6"),
        ("name=a", "utf-8", "\u5bb6"),
        ("charset=base64", "utf-8", "\u5bb6"),
        ("charset=iso-8859-2", "utf-8", "\u5bb6"),  # a page that is valid UTF-8 is UTF-8
    ],
)
def test_a_page_keeps_the_encoding_that_it_declares(declaration: str, encoding: str, text: str) -> None:
    page = PAGE.format(declaration, text)
    document = read("a.html", page.encode(encoding))
    assert [unit.text for unit in document.units] == [text]
    assert document.write([text], "fr") == page.encode(encoding)


def test_characters_that_the_encoding_of_a_page_lacks_become_references() -> None:
    document = read("a.html", PAGE.format("charset=iso-8859-1", "house"))
    assert document.write(["\u5bb6 \u00e9"], "ja") == PAGE.format("charset=iso-8859-1", "&#23478; \u00e9").encode(
        "cp1252"
    )
    with pytest.raises(DocumentError, match="declares"):
        read("a.html", PAGE.format("charset=euc-jp", "").encode() + b"\xff\xff")
