"""Characters without a shape do not change how a text is translated."""

from __future__ import annotations

import pytest

from server.operations.translating.marked_segments import split_markup
from server.operations.translating.segments import Segment, split
from server.text.invisible import without_invisible
from server.text.markup.markup_options import MarkupKind, MarkupOptions
from server.text.windowed_search import WINDOW


def test_soft_hyphens_and_marks_are_removed_but_not_joiners_and_spaces():
    assert without_invisible("\ufeffgar\u00adden\u200b \u200e\u2060x\u2066y\u2069") == "garden xy"
    kept = "نمی\u200cخواهم 👨\u200d👩\u200d👧 a\u00a0b\u202fc\u2003d"
    assert without_invisible(kept) == kept
    long = "a\u00ad" * WINDOW
    assert without_invisible(long) == "a" * WINDOW


def test_a_segment_is_read_without_them_and_copied_with_them():
    first, last = split("The gar\u00adden.\u200b \u200eThe cat.", "fr", lambda text: True, source="en")
    assert (first.text, first.reading, first.separator) == ("The gar\u00adden.", "The garden.", "\u200b \u200e")
    assert (last.text, last.separator) == ("The cat.", "")
    assert Segment("\u200e12:30", "").result(0) == "\u200e12:30"


@pytest.mark.parametrize(
    ("kind", "hyphen"), [("html", "&shy;"), ("html", "\u00ad"), ("xml", "&#173;"), ("text", "\u00ad")]
)
def test_a_marked_sentence_is_read_without_them_and_copied_with_them(kind: MarkupKind, hyphen: str):
    tag = "{name}" if kind == "text" else "<b>sle~eps</b>"
    document = f"The do~g {tag} here.~ The cat runs.".replace("~", hyphen)
    found = split_markup(
        document,
        MarkupOptions(kind),
        lambda text: split(text, "fr", lambda part: True, source="en"),
        lambda text: True,
    )
    sentences = [segment for segment in found if segment.text]
    assert [segment.text for segment in sentences][1] == "The cat runs."
    assert hyphen not in sentences[0].reading and "dog" in sentences[0].reading
    assert "".join(segment.result(0) for segment in found) == document
