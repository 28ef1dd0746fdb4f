"""Markup for language models: numbered tags are written into a sentence and read from its translation."""

from __future__ import annotations

import pytest

from server.text.markup.markup_options import MarkupOptions
from server.text.markup.markup_sentences import MarkedSentence, escape, sentences
from server.text.markup.protected import Protection
from server.text.markup.shown_tags import MAX_SHOWN_TAGS, can_be_shown, restored, shown, with_parts, without_tags
from server.text.markup.tag_placement import proportional_alignment

SOURCE = 'The <a href="/x">red <i>house</i></a> has <img src="a"> a <code>x &lt; y</code> door.'


def sentence(document: str) -> MarkedSentence:
    (found,) = sentences(document, MarkupOptions("html"), lambda text: [(text, "")], bool)
    assert isinstance(found, MarkedSentence)
    return found


def written(answer: str, document: str = SOURCE) -> str | None:
    return restored(answer, sentence(document).tags, lambda text: escape(text, "html"))


def test_a_sentence_with_numbered_tags() -> None:
    own = sentence(SOURCE)
    numbered = "The <s1>red <s2>house</s2></s1> has <s3></s3> a <s4>x < y</s4> door."
    assert shown(own.text, own.tags) == numbered and can_be_shown(own.text, own.tags)
    assert written(numbered) == SOURCE
    assert without_tags(f" <target>{numbered}</target>\n") == "The red house has a x < y door."


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            "<s4>z</s4> & <s3/> und <s1>das <s2>Haus</s2> dort</s1>",
            '<code>x &lt; y</code> &amp; <img src="a"> und <a href="/x">das <i>Haus</i> dort</a>',
        ),
        (
            "<target><s1><s2>Haus</s2></s1><s3></s3><s4></s4></target>",
            '<a href="/x"><i>Haus</i></a><img src="a"><code>x &lt; y</code>',
        ),
        ("<s1>das <s2>Haus</s2></s1> <s3></s3>", None),  # a tag is missing
        ("<s1>a <s2>b</s2></s1> <s3></s3> <s4>c</s4> <s3></s3>", None),  # twice
        ("<s1>a</s1> <s2>b</s2> <s3></s3> <s4>c</s4>", None),  # nested in another way
        ("<s1>a <s2>b</s1></s2> <s3></s3> <s4>c</s4>", None),  # crossed
        ("<s1>a <s2> </s2></s1> <s3></s3> <s4>c</s4>", None),  # without text
        ("<s1>a <s2>b</s2> <s3></s3> <s4>c</s4>", None),  # open
        ("<s1>a <s2>b</s2></s1> <s3></s3> <s4>c</s4> <s9>d</s9>", None),  # unknown
        ("a </s1>", None),
    ],
)
def test_an_answer_is_used_if_it_has_each_tag_once(answer: str, expected: str | None) -> None:
    assert written(answer) == expected


def test_line_breaks_of_an_answer_have_the_order_of_the_source() -> None:
    options = MarkupOptions("html", non_splitting_tags=frozenset({"br"}))
    (own,) = sentences("I <b>see<br id=1>dogs</b> and<br id=2>cats.", options, lambda text: [(text, "")], bool)
    assert isinstance(own, MarkedSentence)
    answer = "cats<s3></s3>and <s1>see<s2></s2>dogs</s1>."
    assert restored(answer, own.tags, str) == "cats<br id=1>and <b>see<br id=2>dogs</b>."


def test_what_cannot_be_shown() -> None:
    many = sentence("a " + "<b>c</b> d " * (MAX_SHOWN_TAGS + 1) + "e")
    named = sentence("a <b>c</b> &lt;s1&gt; d")
    assert not can_be_shown(many.text, many.tags) and not can_be_shown(named.text, named.tags)
    assert not can_be_shown("plain", [])


def test_protected_parts_are_text_for_a_language_model() -> None:
    options = MarkupOptions("html", protection=Protection(patterns=True))
    document = "Hi {a}, <b>{b} see</b> https://x.y/?a=1&amp;b=2 or <img> now."
    (own,) = sentences(document, options, lambda text: [(text, "")], bool)
    assert isinstance(own, MarkedSentence)
    text, tags = with_parts(own.text, own.tags)
    assert text == "Hi {a}, {b} see https://x.y/?a=1&b=2 or now."
    assert [(text[tag.start : tag.end], tag.opening) for tag in tags] == [("{b} see", "<b>"), ("", "<img>")]


def test_word_order_follows_words_that_are_the_same() -> None:
    source, target = "In 1990 Anna Berg sold the house", "Das Haus wurde 1990 von Anna Berg verkauft"
    weights = proportional_alignment(source, target).weights
    words, translated = source.split(), target.split()
    for name in ("1990", "Anna", "Berg"):
        assert weights[translated.index(name)].argmax() == words.index(name)
    assert (weights.sum(1) == 1).all()
    assert proportional_alignment("", "a b").weights.shape == (2, 0)
