"""In translations of the demo model, placeholders stand between the same words as in translations by a person."""

from __future__ import annotations

import re
from itertools import cycle
from pathlib import Path

from tests.e2e.conftest import RunningServer

PLACEHOLDERS = ("{name}", "%s", "%1$s", "😀", "{{size}}", "${price}", "https://example.com/a?b=1", "<0/>", "`x_1`")


def lines() -> list[tuple[str, str]]:
    text = Path(__file__).with_name("placeholder_positions.txt").read_text(encoding="utf-8")
    pairs = [line.split(" | ") for line in text.splitlines() if not line.startswith("#")]
    return [(source, target) for source, target in pairs]


def with_part(marked: str, number: int, part: str) -> str:
    """Insert `part` as a word into a sentence.

    marked: sentence with `/` at possible places. number: index of the place.
    """
    pieces = marked.split("/")
    before, after = "".join(pieces[: number + 1]), "".join(pieces[number + 1 :])
    return f"{before} {part}{'' if after[:1] in ' .,' else ' '}{after}".strip()


def neighbours(text: str, part: str) -> tuple[list[str], list[str]]:
    """The last word before `part` and the first word after it; each a list with at most one word."""
    before, _, after = text.partition(part)
    words = [re.findall(r"\w+", side) for side in (before, after)]
    return words[0][-1:], words[1][:1]


def test_placeholders_stand_between_the_annotated_words(demo_server: RunningServer) -> None:
    parts = cycle(PLACEHOLDERS)
    cases = []
    for source, target in lines():
        assert source.count("/") == target.count("/"), source
        for number in range(source.count("/")):
            part = next(parts)
            cases.append((with_part(source, number, part), with_part(target, number, part), part))
    assert len(cases) >= 100
    body = {"inputs": [source for source, _, _ in cases], "source_lang": "en", "target_lang": "fr"}
    answer = demo_server.post("/translate", json=body).json()
    found = [translation["text"] for translation in answer["translations"]]
    assert all(text.count(part) == 1 for text, (_, _, part) in zip(found, cases, strict=True))
    wrong = [
        (source, text, expected)
        for text, (source, expected, part) in zip(found, cases, strict=True)
        if neighbours(text, part) != neighbours(expected, part)
    ]
    assert len(wrong) <= len(cases) // 20, (len(wrong), len(cases), wrong)
