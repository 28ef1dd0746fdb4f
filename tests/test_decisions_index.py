"""The index of the decision pages is current, and each superseded page names the page that replaces it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_SPEC = importlib.util.spec_from_file_location("decisions_index", ROOT / "docs" / "decisions_index.py")
assert _SPEC is not None and _SPEC.loader is not None
decisions_index = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = decisions_index  # dataclasses look their module up
_SPEC.loader.exec_module(decisions_index)

LISTED = decisions_index.decisions()


def test_the_index_is_current():
    assert decisions_index.PAGE.read_text() == decisions_index.page(LISTED), "run `make reference`"


def test_numbers_are_those_of_the_file_names_and_no_two_pages_share_one():
    assert [decision.number for decision in LISTED] == [int(decision.name[:4]) for decision in LISTED]
    assert len({decision.number for decision in LISTED}) == len(LISTED) > 80


def test_a_superseded_page_links_newer_pages_that_exist():
    numbers = {decision.number for decision in LISTED}
    superseded = [decision for decision in LISTED if decision.status]
    assert len(superseded) > 10
    for decision in superseded:
        assert decision.successors and set(decision.successors) <= numbers, decision.name
        assert min(decision.successors) > decision.number, decision.name


def test_every_status_is_read():
    """The index finds the status of every page that says it is superseded, wherever the page says it."""
    for decision in LISTED:
        text = (decisions_index.DECISIONS / decision.name).read_text()
        assert len(re.findall(r"^\W*superseded", text, re.MULTILINE | re.IGNORECASE)) == bool(decision.status), (
            decision.name
        )


def test_links_between_decisions_lead_to_pages():
    names = {decision.name for decision in LISTED}
    for decision in LISTED:
        text = (decisions_index.DECISIONS / decision.name).read_text()
        assert set(re.findall(r"\]\((\d{4}-[^)]*)\)", text)) <= names, decision.name


def test_title_status_and_note_of_a_page():
    status = "*Superseded in part: [decision 9](0009-new.md)\nis better.*"
    old = decisions_index.read("0005-old.md", f"# 5. Old\n\n{status}\n\nText.")
    new = decisions_index.read("0009-new.md", "# 9. New\n\n*Emphasis* is no status.\n")
    assert (old.number, old.title, old.status, old.successors) == (5, "Old", "Superseded in part", [9])
    assert (new.status, new.note) == ("", "")
    rows = decisions_index.page([old, new]).splitlines()[-2:]
    assert rows[0].endswith("| **Superseded in part:** [decision 9](0009-new.md) is better. |")
    assert rows[1].endswith("| Changes [5](0005-old.md). |")
    with pytest.raises(ValueError, match="0007"):
        decisions_index.read("0007-none.md", "# 0007: With another title\n")
