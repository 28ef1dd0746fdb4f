"""Subtitles have a positive duration, are in order, never overlap, and keep all the text."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest

from server.text.speech.subtitles import SubtitleLine, srt, vtt


def line(start: float, end: float, text: str = " word") -> SubtitleLine:
    return SubtitleLine(start, end, text, [], 0, None)


def cues(page: str) -> list[tuple[float, float, str]]:
    """Start and end in seconds, and text, of each cue in a SubRip or WebVTT file."""
    found = []
    for block in page.removeprefix("WEBVTT\n\n").strip("\n").split("\n\n"):
        times, text = re.fullmatch(r"(?:\d+\n)?(.+ --> .+)\n((?s:.+))", block).groups()  # type: ignore[union-attr]
        start, end = (
            sum(float(part) * 60**power for power, part in enumerate(reversed(clock.replace(",", ".").split(":"))))
            for clock in times.split(" --> ")
        )
        found.append((round(start, 3), round(end, 3), text))
    return found


@pytest.mark.parametrize("write", [srt, vtt])
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([line(0, 2), line(2, 4.5)], [(0, 2, "word"), (2, 4.5, "word")]),
        # A line without a duration is shown during the pause after it, for at most one second.
        ([line(1, 1), line(1.4, 2)], [(1, 1.4, "word"), (1.4, 2, "word")]),
        ([line(1, 1), line(8, 9)], [(1, 2, "word"), (8, 9, "word")]),
        # Without a pause, its text joins the next line.
        ([line(1, 1, " one"), line(1, 2, " two")], [(1, 2, "one\ntwo")]),
        # Times less than a millisecond apart are equal in a file.
        ([line(1, 1.0003, " one"), line(1.0004, 2, " two")], [(1, 2, "one\ntwo")]),
        # The last line starts earlier, or is joined to the line before it.
        ([line(0, 2), line(6, 6)], [(0, 2, "word"), (5, 6, "word")]),
        ([line(0, 6, " one"), line(6, 6, " two")], [(0, 6, "one\ntwo")]),
        ([line(0, 0)], [(0, 1, "word")]),
        # Lines that overlap are cut where the next one starts.
        ([line(0, 5), line(3, 4)], [(0, 3, "word"), (3, 4, "word")]),
        ([line(0, 1, " one\n\n two --> three")], [(0, 1, "one\ntwo -> three")]),
    ],
)
def test_cues_of_lines(write, lines: list[SubtitleLine], expected: list) -> None:
    assert cues(write(lines)) == expected


@pytest.mark.parametrize("write", [srt, vtt])
def test_cues_never_overlap_and_keep_all_text(write) -> None:
    rng = random.Random(5)
    for _ in range(300):
        times = sorted(
            rng.choice([0, 0.5, 1, 1.0004, 2, 7, 9, rng.uniform(0, 9)]) for _ in range(2 * rng.randint(1, 6))
        )
        lines = [line(start, end, f" w{start}") for start, end in zip(times[::2], times[1::2], strict=True)]
        found = cues(write(lines))
        assert all(start < end for start, end, _ in found)
        assert all(one[1] <= other[0] for one, other in pairwise(found))
        assert max(end for _, end, _ in found) <= max(round(lines[-1].end, 3), 1)
        assert " ".join(text for *_, text in found).split() == [entry.text.strip() for entry in lines]


def test_no_lines() -> None:
    assert srt([]) == "" and vtt([]) == "WEBVTT\n\n"
