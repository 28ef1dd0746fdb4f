"""HTML and XML are divided into sentences and rebuilt: markup is never lost or changed, and inline tags stay nested.

Hostile markup takes bounded time. Structure is compared by Python's `html.parser` and by expat through `xml.etree`; our
code uses neither to rebuild a document.
"""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.operations.translating.segments import split
from server.text.languages.sentences import split_sentences
from server.text.markup.markup import plain_text
from server.text.markup.markup_options import MAX_TAGS, MarkupOptions
from server.text.markup.markup_sentences import MarkedSentence, sentences
from server.text.markup.markup_tokens import VOID_TAGS, MarkupError, tokens
from server.text.markup.tag_rules import BLOCK_TAGS, MAX_DEPTH
from server.text.markup.unit_attention import TokenAlignment

HTML, XML = MarkupOptions("html"), MarkupOptions("xml")
INLINE = st.sampled_from(["b", "i", 'a href="x?a=1&amp;b"', "span class='c'", "code", "em translate=no"])
BLOCKS = st.sampled_from(["p", "div id=1", "li", "h1", "td"])
WORDS = st.lists(st.sampled_from(["Ab", "cd", "e", "&amp;", "&lt;x", "café", "日本"]), min_size=1, max_size=4)
TEXT = st.tuples(WORDS.map(" ".join), st.sampled_from(["", ".", ". ", "! Z", "\n", " \n "])).map("".join)


def element(name: str, content: str) -> str:
    return f"<{name}>{content}</{name.split()[0]}>"


PHRASES = st.recursive(
    TEXT | st.sampled_from(["<img src=a>", "<!-- c -->", " ", ""]),
    lambda inner: st.builds(element, INLINE, st.lists(inner, max_size=3).map("".join)),
    max_leaves=8,
)
DOCUMENTS = st.lists(
    st.builds(element, BLOCKS, st.lists(PHRASES, max_size=4).map("".join)) | PHRASES | st.just("<br>\n"), max_size=5
).map("".join)
NOISE_TAGS = "b /b i /i /p p a=<x> /a script /script textarea /textarea title /title li code /code plaintext svg /svg"
NOISE_TEXT = [
    "<",
    ">",
    "</>",
    "<!--",
    "-->",
    "<!--x-->",
    "<?",
    "<![CDATA[",
    "]]>",
    "&",
    "&amp;",
    "&notit;",
    "&#x41;",
    "é",
]
NOISE_TEXT += [
    "<a href='<'>",
    "<li translate=no>",
    "<br/>",
    "<img>",
    "a",
    "Bc. ",
    "\0",
    "\r\n",
    "\r",
    "\n",
    " ",
    "😀",
    '"',
    "/",
]
NOISE = st.lists(st.sampled_from([*NOISE_TEXT, *(f"<{name}>" for name in NOISE_TAGS.split())]), max_size=24).map(
    "".join
)
NOT_WELL_FORMED = [
    "<a>",
    "<a></b>",
    "&nbsp;",
    "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
    "</document><document>",
    "a & b",
]


def parts_of(document: str, options: MarkupOptions = HTML) -> list[str | MarkedSentence]:
    def split_text(text: str) -> list[tuple[str, str]]:
        return [(sentence.text, sentence.separator) for sentence in split(text, "ja", lambda _: True)]

    return sentences(document, options, split_text, lambda _: True)


def rebuilt(document: str, options: MarkupOptions = HTML, change: str = "same", seed: int = 0) -> str:
    """The document after a translation of each sentence.

    change: `same` keeps the sentences. Otherwise, words get a random order and a random alignment.
    """
    rng = random.Random(seed)
    found = []
    for part in parts_of(document, options):
        if isinstance(part, str):
            found.append(part)
            continue
        text, alignment = part.text, None
        if change == "shuffled":
            words = [word.upper() for word in part.text.split()] + ["Ω"]
            rng.shuffle(words)
            text = " ".join(words)
            alignment = aligned(part.text, text, rng)
        found.append(part.render(text, alignment))
    return "".join(found)


def aligned(source: str, target: str, rng: random.Random) -> TokenAlignment:
    """An alignment of two texts with one token per character and random attention."""
    weights = np.random.default_rng(rng.randrange(1 << 30)).dirichlet([0.1] * len(source), len(target))
    spans = [[(at, at + 1) for at in range(len(text))] for text in (source, target)]
    return TokenAlignment(spans[0], spans[1], weights.astype(np.float32))


class Structure(HTMLParser):
    """The tags of an HTML document with their attributes, in order, as Python's own parser finds them."""

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[tuple[str, str, tuple[tuple[str, str | None], ...]]] = []
        self.inline: Counter[tuple[str, tuple[tuple[str, str | None], ...]]] = Counter()
        self.misnested = False
        self._path: list[str] = []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in BLOCK_TAGS:
            self.blocks.append(("start", tag, tuple(attrs)))
        else:
            self.inline[tag, tuple(attrs)] += 1
        if tag not in VOID_TAGS:
            self._path.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in BLOCK_TAGS:
            self.blocks.append(("end", tag, ()))
        if not self._path or self._path.pop() != tag:
            self.misnested = True


@given(NOISE, st.sampled_from(["html", "xml"]))
def test_tokens_joined_are_the_document(document: str, kind: str) -> None:
    try:
        found = tokens(document, "html" if kind == "html" else "xml")
    except MarkupError:
        assert kind == "xml"
    else:
        assert "".join(token.raw for token in found) == document


@given(NOISE | DOCUMENTS)
def test_a_translation_that_changes_nothing_returns_the_document(document: str) -> None:
    assert rebuilt(document) == document


@given(DOCUMENTS, st.integers(0, 99))
def test_blocks_and_attributes_survive_and_tags_stay_nested(document: str, seed: int) -> None:
    before, after = Structure(document), Structure(rebuilt(document, change="shuffled", seed=seed))
    assert after.blocks == before.blocks
    assert not before.misnested and not after.misnested
    assert after.inline <= before.inline, "an inline tag was added or changed"
    assert after.inline["img", (("src", "a"),)] == before.inline["img", (("src", "a"),)], "an image was dropped"
    assert after.inline["code", ()] == before.inline["code", ()], "untranslated text was dropped"


@given(DOCUMENTS, st.integers(0, 99))
def test_xml_stays_well_formed(document: str, seed: int) -> None:
    document = document.replace("<br>", "<br/>").replace("<img src=a>", '<img src="a"/>').replace("id=1", 'id="1"')
    document = document.replace("translate=no", 'translate="no"')
    ET.fromstring(f"<r>{document}</r>")
    assert rebuilt(document, XML) == document
    ET.fromstring(f"<r>{rebuilt(document, XML, 'shuffled', seed)}</r>")


@given(NOISE, st.integers(0, 9))
def test_broken_markup_can_be_translated(document: str, seed: int) -> None:
    rebuilt(document, change="shuffled", seed=seed)


def texts(document: str, options: MarkupOptions = HTML) -> list[str]:
    return [part.text for part in parts_of(document, options) if isinstance(part, MarkedSentence)]


def test_sentences_of_html() -> None:
    assert texts("<p>One &amp; two.\n  Three\nfour.</p><td>Five<br>six") == ["One & two.", "Three four.", "Five", "six"]
    assert texts("<p><b>Bold text.</b> More <i>text. And</i> text.") == ["Bold text.", "More text. And text."]
    assert texts("<title>A &lt;b&gt;</title><textarea>no</textarea><script>no</script><pre>no</pre>") == ["A <b>"]
    assert texts("<p translate=no>no<p>yes<div translate=no>no<b translate=yes>yes</b></div>") == ["yes", "yes"]
    assert texts("<li class='x notranslate'>no<li>yes <code>x = 1</code> and <svg>no</svg>") == ["yes x = 1 and"]
    assert texts("<p><code>x</code></p> <p>") == []
    assert plain_text("<p>a<b>b</b></p><script>c</script>d", HTML) == "ab\nd"


def test_sentences_of_xml() -> None:
    document = "<d><t>Title</t><p>One <b>two</b>. <i>Three</i></p><l><x>a</x><x>b</x></l></d>"
    assert texts(document, XML) == ["Title", "One two.", "Three", "a", "b"]
    kept = '<p>One <q translate="no">two <b translate="yes">x</b></q> three.</p><p class="a notranslate">no</p>'
    assert texts(kept, XML) == ["One two x three."]
    assert rebuilt(kept, XML, "shuffled").count('<q translate="no">two <b translate="yes">x</b></q>') == 1
    flat = MarkupOptions("xml", detect_outline=False, splitting_tags=frozenset(["p", "x"]))
    assert texts(document, flat) == ["Title", "One two.", "Three", "a", "b"]
    joined = MarkupOptions("xml", non_splitting_tags=frozenset(["x"]), ignore_tags=frozenset(["t"]))
    assert texts(document, joined) == ["One two.", "Three", "ab"]
    assert texts("<p>a\nb</p>", MarkupOptions("xml", split_at_newlines=True)) == ["a", "b"]
    assert texts("<p>a\nb</p>", XML) == ["a b"]
    assert texts("<p>a <![CDATA[<no>]]> b</p>", XML) == ["a b"]


@pytest.mark.parametrize(
    "document",
    ["<a>", "<a></b>", "&nbsp;", "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "</document><document>", "a & b"],
)
def test_xml_that_is_not_well_formed_is_refused(document: str) -> None:
    with pytest.raises(MarkupError, match=r"not well-formed \(line 1, column \d+\)"):
        tokens(document, "xml")


@pytest.mark.parametrize("options", [HTML, XML])
def test_hostile_markup_is_bounded(options: MarkupOptions) -> None:
    with pytest.raises(MarkupError, match=f"more than {MAX_TAGS} tags"):
        parts_of("<b>a</b>" * (MAX_TAGS + 1), options)
    with pytest.raises(MarkupError, match=f"deeper than {MAX_DEPTH}"):
        parts_of("<b>" * (MAX_DEPTH + 1) + "a" + "</b>" * (MAX_DEPTH + 1), options)
    deepest = "<b>a " * MAX_DEPTH + "</b>" * MAX_DEPTH
    assert rebuilt(deepest, options) == deepest
    ET.fromstring(rebuilt(deepest, XML, "shuffled"))


def test_an_element_across_sentences_that_do_not_fit_together_is_dropped() -> None:
    def split_text(text: str) -> list[tuple[str, str]]:
        return [(sentence.text, sentence.separator) for sentence in split(text, "ja", lambda _: True)]

    found = sentences(
        "<p>One <b>two. Three <img>x</b> four.</p>", HTML, split_text, lambda text: "two. Three" not in text
    )
    assert (
        "".join(part if isinstance(part, str) else part.raw for part in found) == "<p>One two. Three <img>x four.</p>"
    )


def split_english(text: str) -> list[tuple[str, str]]:
    return [(part.text, part.separator) for part in split_sentences(text, "en")]


@pytest.mark.parametrize(
    ("document", "read"),
    [
        ("<p>The garden<sup>1</sup> is small.</p>", ["The garden is small."]),
        ("<p>Small.<sup>[1]</sup> Runs.<sup id=r><a href=#n>[2]</a></sup></p>", ["Small.", "Runs."]),
        ("<p>It is 10<sup>6</sup>, small.</p>", ["It is 10, small."]),
        ("<p>The 1<sup>st</sup> day x<sup>2</sup>y.</p>", ["The 1st day x2y."]),
        ("<p>H<sub>2</sub>O is wet.</p>", ["H2O is wet."]),
    ],
)
def test_marks_of_footnotes_are_no_part_of_a_word(document: str, read: list[str]):
    found = sentences(document, HTML, split_english, lambda text: True)
    assert [part.text for part in found if isinstance(part, MarkedSentence)] == read
    assert "".join(part if isinstance(part, str) else part.raw for part in found) == document
