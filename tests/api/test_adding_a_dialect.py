"""docs/adding-a-dialect.md names every file that belongs to the LibreTranslate dialect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server.api.dialects import libretranslate
from server.api.fields import field_kinds
from server.api.routes import error_shape, get_route, route, streaming_route

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding-a-dialect.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| `([\w/.-]+)`: .* \| `(.*?)` \|$", PAGE, re.MULTILINE)


def test_the_places_have_consecutive_numbers():
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 15))


@pytest.mark.parametrize(("path", "snippet"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_each_place_has_what_the_page_says(path: str, snippet: str):
    assert snippet in (ROOT / path).read_text()


def test_the_server_has_no_other_places():
    sources = [path for path in (ROOT / "server").rglob("*.py") if re.search("libretranslate", path.read_text(), re.I)]
    places = {path for _, path, _ in ROWS if path.startswith("server/")}
    assert {path.relative_to(ROOT).as_posix() for path in sources} == places


def test_the_example_is_the_code():
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    code = Path(libretranslate.__file__).read_text()
    assert "".join(f"    {line}" for line in example.splitlines(keepends=True)) in code


@pytest.mark.parametrize("name", ["JsonRoute", "StreamingRoute", "GetRoute", "Hint", "wish", "only", "Unsupported"])
def test_the_parts_that_the_page_names_exist(name: str):
    assert f"`{name}`" in PAGE
    assert any(hasattr(module, name) for module in (route, streaming_route, get_route, field_kinds))


def test_the_fields_of_a_route_that_the_page_names_exist():
    listed = set(re.findall(r"^- `(\w+)` (?:names|is) ", PAGE, re.MULTILINE))
    assert listed == {"field", "key_field", "example"}
    assert listed <= route.JsonRoute.__dataclass_fields__.keys()
    assert {"statuses", "fields", "body", "answer"} <= error_shape.ErrorShape.__dataclass_fields__.keys()
