"""Texts as word processors and web pages write them are translated like the same texts in plain characters."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import RunningServer
from tests.e2e.test_oracle import post

PLAIN = "The dog's house is old. The cat sleeps in the garden."


def translated(server: RunningServer, text: str, kind: str = "text") -> str:
    (found,) = post(server, "/translate", {"inputs": text, "format": kind})["translations"]
    return str(found["text"])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (PLAIN.replace("'", "’"), "text"),
        (PLAIN.replace("garden", "gar\u00adden"), "text"),
        (PLAIN.replace("garden", "gar\u00adden").replace("dog", "d\u2060og"), "html"),
        (PLAIN.replace("garden", "gar&shy;den").replace("'", "&rsquo;"), "html"),
    ],
)
def test_characters_that_readers_do_not_see_change_nothing(demo_server: RunningServer, text: str, kind: str) -> None:
    assert translated(demo_server, text, kind) == translated(demo_server, PLAIN, kind)


@pytest.mark.parametrize("between", ["\u200b ", " \ufeff", "\u200e ", "\u2029"])
def test_a_sentence_after_invisible_characters_is_translated(demo_server: RunningServer, between: str) -> None:
    expected = between.join(translated(demo_server, text) for text in ("The dog sleeps.", "The cat runs."))
    assert translated(demo_server, f"The dog sleeps.{between}The cat runs.") == expected


def test_a_sentence_after_an_ellipsis_is_translated(demo_server: RunningServer) -> None:
    found = translated(demo_server, "The dog sleeps… The cat runs.")
    assert found == f"{translated(demo_server, 'The dog sleeps…')} {translated(demo_server, 'The cat runs.')}"


def test_the_reading_of_a_word_stays_and_is_not_read(demo_server: RunningServer) -> None:
    marked = translated(demo_server, "<p>The <ruby>dog<rp>(</rp><rt>dɒɡ</rt><rp>)</rp></ruby> sleeps.</p>", "html")
    assert marked.count("<rp>(</rp><rt>dɒɡ</rt><rp>)</rp></ruby>") == 1
    without = marked.replace("<rp>(</rp><rt>dɒɡ</rt><rp>)</rp>", "").replace("<ruby>", "").replace("</ruby>", "")
    assert without == translated(demo_server, "<p>The dog sleeps.</p>", "html")
