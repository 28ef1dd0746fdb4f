"""Files, classes and functions that docs/architecture.md names exist, and so do paths on other pages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
]
PATH = re.compile(r"(?<![\w/.-])(?:models|weights|server|tests|benchmarks|deploy|examples)/[\w./-]*[\w/]")


def section(title: str) -> str:
    """The text of docs/architecture.md below a heading, up to the next one."""
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def steps(title: str) -> list[list[tuple[str, str]]]:
    """Per row (step) of the table below a heading: the files that do it, each with a class, function or method."""
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", section(title), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    return [re.findall(r"`([\w/]+\.py)`: `([\w.]+)`", cell) for _, cell in rows]


def is_defined(path: str, name: str) -> bool:
    """Whether a file defines a class, function or method. name: such as `Class`, `function` or `Class.method`."""
    body: list[ast.stmt] = ast.parse((ROOT / path).read_bytes()).body
    for part in name.split("."):
        found = [node for node in body if getattr(node, "name", None) == part]
        if not found:
            return False
        body = getattr(found[0], "body", [])
    return True


@pytest.mark.parametrize(("title", "count"), [("The life of a request", 10), ("The life of a checkpoint", 6)])
def test_each_step_names_files_and_what_does_it(title: str, count: int):
    found = steps(title)
    assert len(found) == count and all(found)
    for places in found:
        for path, name in places:
            assert is_defined(path, name), f"{path} has no {name}"


def test_the_names_beside_files_exist_on_the_whole_page():
    for path, name in re.findall(r"`([\w/]+\.py)`: `([\w.]+)`", PAGE):
        assert is_defined(path, name), f"{path} has no {name}"


def test_a_wrong_name_is_found():
    assert is_defined("server/ipc/client/call.py", "Call.submit")
    assert not is_defined("server/ipc/client/call.py", "Call.no_such_method")
    assert not is_defined("server/ipc/client/call.py", "submit")


def test_the_reading_list_has_ten_items_and_the_length_of_their_files():
    items = re.findall(r"^\d+\. (`[\w/]+\.py`: .*)$", section("What to read first"), re.MULTILINE)
    assert len(items) == 10
    files = [path for item in items for path in re.findall(r"`([\w/]+\.py)`: ", item)]
    lines = sum(len((ROOT / path).read_text().splitlines()) for path in files)
    (stated,) = re.findall(r"some ([\d,]+) lines", PAGE)
    assert abs(lines - int(stated.replace(",", ""))) < 500, f"the files have {lines} lines"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_on_pages_exist(page: Path):
    named = set(PATH.findall(page.read_text()))
    assert [path for path in sorted(named) if not ((ROOT / path).exists() or (page.parent / path).exists())] == []
