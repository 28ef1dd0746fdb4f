"""Write the timed lines of a transcript as subtitle files: SubRip and WebVTT."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_ADDED_MS = 1000
"""Longest time added to a subtitle that has no duration: about the time to read a short line."""


@dataclass(frozen=True)
class SpokenWord:
    """One word of a transcript. start, end: seconds from the beginning of the recording."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class SubtitleLine:
    """One timed part of a transcript.

    start, end: seconds from the beginning of the recording.
    text: transcript of the part, including a leading space.
    token_ids: token ids of the part, including timestamp tokens.
    window_frame: index of the first frame (10 ms) of the window from which the part was decoded.
    mean_logprob: mean log-probability of the window's tokens; None if not computed.
    no_speech_prob: probability that the window has no speech; None if not computed.
    temperature: sampling temperature at which the window was decoded.
    words: words of the part; empty if they were not asked for.
    """

    start: float
    end: float
    text: str
    token_ids: list[int]
    window_frame: int
    mean_logprob: float | None
    no_speech_prob: float | None = None
    temperature: float = 0.0
    words: Sequence[SpokenWord] = ()


def srt(lines: Sequence[SubtitleLine]) -> str:
    """Return a SubRip file: the number, the times, the text and an empty line for each subtitle."""
    return "".join(
        f"{number}\n{_clock(cue.start, ',')} --> {_clock(cue.end, ',')}\n{cue.text}\n\n"
        for number, cue in enumerate(_cues(lines), 1)
    )


def vtt(lines: Sequence[SubtitleLine]) -> str:
    """Return a WebVTT file. Source: W3C candidate recommendation, 4 April 2019."""
    cues = [f"{_clock(cue.start, '.')} --> {_clock(cue.end, '.')}\n{cue.text}\n\n" for cue in _cues(lines)]
    return "WEBVTT\n\n" + "".join(cues)


class _TimedText(NamedTuple):
    """One subtitle. start, end: milliseconds."""

    start: int
    end: int
    text: str


def _cues(lines: Sequence[SubtitleLine]) -> list[_TimedText]:
    """Return the subtitles of a transcript, in order. Each lasts some time, and ends before the next one starts.

    A line without a duration lasts until the next line starts, but at most `MAX_ADDED_MS`. If the last line has no
    duration, it starts up to `MAX_ADDED_MS` earlier. If that leaves a line no time, its text joins the next subtitle,
    or the previous one at the end.
    """
    cues: list[_TimedText] = []
    waiting: list[str] = []
    for index, line in enumerate(lines):
        earliest = cues[-1].end if cues else 0
        start, end = max(_milliseconds(line.start), earliest), max(_milliseconds(line.end), earliest)
        if index + 1 < len(lines):
            end = min(end if end > start else start + MAX_ADDED_MS, _milliseconds(lines[index + 1].start))
        elif end <= start:
            start, end = max(start - MAX_ADDED_MS, earliest), start or MAX_ADDED_MS
        waiting.append(_cue_text(line.text))
        if end > start:
            cues.append(_TimedText(start, end, "\n".join(waiting)))
            waiting = []
    if waiting:
        last = cues.pop()
        cues.append(last._replace(text="\n".join([last.text, *waiting])))
    return cues


def _cue_text(text: str) -> str:
    """Return the text of a subtitle in a form that cannot break the file.

    Empty lines, which would end the subtitle, are removed. `-->`, which separates two times, becomes `->`.
    """
    rows = [row.strip() for row in text.replace("-->", "->").splitlines()]
    return "\n".join(row for row in rows if row)


def _milliseconds(seconds: float) -> int:
    return math.floor(seconds * 1000 + 0.5)


def _clock(milliseconds: int, point: str) -> str:
    """Return a time as `hh:mm:ss,mmm`. point: mark before the milliseconds, `,` in SubRip and `.` in WebVTT."""
    rest, thousandths = divmod(milliseconds, 1000)
    minutes, second = divmod(rest, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}{point}{thousandths:03d}"
