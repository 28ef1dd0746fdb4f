"""Tests of `search` in windows: the same matches as one search of the whole text, wherever a window ends."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from server.text import windowed_search
from server.text.markup.protected import Protection
from server.text.windowed_search import count_characters, search

_PARTS = [
    "`code`",
    "{name}",
    "a.b@c.org",
    "https://x.org/a",
    "%1$s",
    "word",
    "a",
    " ",
    "\n",
    "😀",
    "{a, plural, one {#}}",
]


def _matches(pattern: re.Pattern[str], text: str, longest: int) -> Iterator[tuple[int, int]]:
    at = 0
    while (match := search(pattern, text, at, longest)) is not None:
        yield match.span()
        at = max(match.end(), match.start() + 1)


@pytest.mark.parametrize("window", [24, 45, 51, 64])
def test_the_matches_are_those_of_one_search(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windowed_search, "WINDOW", window)
    rng = random.Random(window)
    pattern = re.compile(r"(?<!a)b{1,20}(?!c)|\bd+\b|cc?")
    for _ in range(2000):
        text = "".join(rng.choices("abcd ", k=rng.randrange(200)))
        text = re.sub("d{20,}", "d", text)
        assert list(_matches(pattern, text, 22)) == [match.span() for match in pattern.finditer(text)]


def test_protected_parts_are_found_at_the_ends_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    protection, rng = Protection(patterns=True), random.Random(0)
    texts = ["".join(rng.choices(_PARTS, k=100)) for _ in range(200)]
    expected = [list(protection.spans(text)) for text in texts]
    monkeypatch.setattr(windowed_search, "WINDOW", 8200)
    before = "prose without parts. " * 385
    for text, spans in zip(texts, expected, strict=True):
        for cut in (0, 3, 17):
            moved = before[cut:]
            assert list(protection.spans(moved + text)) == [(a + len(moved), b + len(moved)) for a, b in spans]


def test_a_match_longer_than_a_window_is_found_whole() -> None:
    address = "https://x.org/" + "a" * 100_000
    assert list(Protection(patterns=True).spans(f"See {address} and {{name}}.")) == [(4, 100_018), (100_023, 100_029)]


def test_a_part_at_the_end_of_a_long_text_is_found() -> None:
    text = "prose without parts. " * 10_000
    protection = Protection(patterns=True)
    assert not protection.may_apply(text)
    assert list(protection.spans(text + "{name}")) == [(len(text), len(text) + 6)]


def test_characters_are_counted_in_windows() -> None:
    text = "ab" * 5_000 + "a"
    assert count_characters(re.compile("[ac]"), text) == 5_001
    assert count_characters(re.compile("[ac]"), "") == 0
