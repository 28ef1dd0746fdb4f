"""docs/adding-a-field.md names every place in the code that mentions `min_p` or `no_repeat_ngram_size`."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from server.operations.generating.generation_options import SAMPLER_NEUTRAL

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "adding-a-field.md").read_text()
ROWS = re.findall(r"^\| (?:(\d+) \| )?`([\w/.-]+)`: .* \| `(.*?)` \|$", PAGE, re.MULTILINE)
PLACES = [(path, snippet.replace("\\|", "|")) for _, path, snippet in ROWS]
USER = "server/operations/translating/loops.py"
"""A file that sets `no_repeat_ngram_size` for a second attempt. A new logits processor needs no line there."""
FILTER = {path for number, path, _ in ROWS if number}
OF_SOME_FIELDS = {9, 12, 17, 18, 21, 22, 23, 25, 26}
"""Numbers of the places that only some filters have."""
OF_EVERY_FILTER = sorted({path for number, path, _ in ROWS if number and int(number) not in OF_SOME_FIELDS})


def sources() -> list[Path]:
    """The source files of the product, without those that are compiled or copied from other projects."""
    found = [path for room in ("models", "server", "weights") for path in (ROOT / room).rglob("*")]
    return [path for path in found if path.suffix in (".py", ".h", ".cpp", ".js") and "swagger-ui" not in path.parts]


def mentions(pattern: str) -> set[str]:
    """Paths of the source files that a regular expression matches somewhere."""
    return {path.relative_to(ROOT).as_posix() for path in sources() if re.search(pattern, path.read_text())}


def test_the_places_have_consecutive_numbers():
    numbers = [int(number) for number, _, _ in ROWS if number]
    assert numbers == list(range(1, 28)) and len(ROWS) == len(numbers) + 5


@pytest.mark.parametrize(("path", "snippet"), PLACES, ids=[number or "processor" for number, _, _ in ROWS])
def test_each_place_has_what_the_page_says(path: str, snippet: str):
    assert snippet in (ROOT / path).read_text()


def test_the_filter_has_no_other_places():
    assert mentions(r"\b(log_)?min_ps?\b") == {path for path in FILTER if not path.startswith("docs/")}


def test_a_file_has_as_many_places_as_the_page_says():
    """A file with two places is named on two lines of the page. Backends are left out: they have more mentions."""
    on_page = Counter(path for number, path, _ in ROWS if number and not path.startswith(("docs/", "models/backends/")))
    in_code = {path: len(re.findall(r"^.*\bmin_p\b", (ROOT / path).read_text(), re.MULTILINE)) for path in on_page}
    assert in_code == on_page


@pytest.mark.parametrize("path", OF_EVERY_FILTER)
@pytest.mark.parametrize("name", SAMPLER_NEUTRAL)
def test_every_filter_is_in_the_places_of_all_filters(name: str, path: str):
    assert re.search(rf"\b(log_)?{name}s?\b", (ROOT / path).read_text())


def test_the_page_names_the_places_that_some_filters_lack():
    (text,) = re.findall(r"^It also checks .* Places (.*?) are for some fields only", PAGE, re.MULTILINE)
    spans = [[int(number) for number in part.split(" to ")] for part in re.split(", | and ", text)]
    assert {number for span in spans for number in range(span[0], span[-1] + 1)} == OF_SOME_FIELDS


def test_the_processor_has_no_other_places():
    named = {path for path, _ in PLACES}
    assert mentions(r"\bno_repeat_ngram_size\b") - {USER} <= named
