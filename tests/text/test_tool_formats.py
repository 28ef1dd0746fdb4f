"""The tool format of a chat template is recognised in its rendered text, which equals transformers."""

from __future__ import annotations

import pytest

from server.text.chats.tool_formats import TOOL_FORMATS, by_marker, reasoning_markers, recognise
from tests.text.chat_templates import CHATML
from tests.text.tool_templates import BY_FORMAT, QWEN_3

ROWS = {row.name: row for row in TOOL_FORMATS}
CALLS = [("look_up", {"word": 'naïve "text"', "limits": [1, {"a": None}]}), ("count", {})]


def test_every_row_has_a_template_in_the_tests() -> None:
    assert set(BY_FORMAT) == set(ROWS)


@pytest.mark.parametrize("name", [name for name in ROWS if name != "json"])
def test_a_row_recognises_its_own_text(name: str) -> None:
    row = ROWS[name]
    (found, arguments) = CALLS[0]
    assert recognise(f"before {row.write(CALLS[:1])} after", found, arguments) is row
    assert recognise(row.write(CALLS[1:]), found, arguments) is None


def test_a_marker_begins_the_calls_of_its_row() -> None:
    for row in TOOL_FORMATS:
        assert "".join(row.write(CALLS).split()).startswith("".join(row.marker.split()))


@pytest.mark.parametrize("name", ["hermes", "mistral", "mistral-names", "deepseek", "deepseek-names"])
def test_a_template_is_recognised_by_its_markers(name: str) -> None:
    assert by_marker(BY_FORMAT[name]) is ROWS[name]


def test_templates_without_markers() -> None:
    assert by_marker(CHATML) is None and reasoning_markers(CHATML) is None
    assert reasoning_markers(QWEN_3) == ("<think>", "</think>")
