"""Subtitle files from the timed lines of a transcript: SubRip and WebVTT."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SpokenWord:
    """One word. start, end: seconds of the recording."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class SubtitleLine:
    """One part of a transcript.

    start, end: seconds of the recording.
    text: its text, including a leading space.
    token_ids: its tokens, including timestamp tokens.
    window_frame: first frame (of 10 ms) of the window that the part was decoded from.
    mean_logprob: mean log-probability of all tokens of that window, if computed.
    no_speech_prob: probability that the window has no speech, if computed.
    temperature: temperature at which the window was decoded.
    words: its words; empty if they were not asked for.
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
    """SubRip: number, times, text and an empty line per part."""
    return "".join(
        f"{number}\n{_clock(line.start, ',')} --> {_clock(line.end, ',')}\n{_cue(line)}\n\n"
        for number, line in enumerate(lines, 1)
    )


def vtt(lines: Sequence[SubtitleLine]) -> str:
    """WebVTT. Source: W3C candidate recommendation, 4 April 2019."""
    cues = [f"{_clock(line.start, '.')} --> {_clock(line.end, '.')}\n{_cue(line)}\n\n" for line in lines]
    return "WEBVTT\n\n" + "".join(cues)


def _cue(line: SubtitleLine) -> str:
    """The text of a subtitle, in which `->` replaces `-->`, which in the file separates two times."""
    return line.text.strip().replace("-->", "->")


def _clock(seconds: float, point: str) -> str:
    """Hours, minutes, seconds and milliseconds. point: `,` in SubRip, `.` in WebVTT."""
    milliseconds = math.floor(seconds * 1000 + 0.5)
    rest, thousandths = divmod(milliseconds, 1000)
    minutes, second = divmod(rest, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}{point}{thousandths:03d}"
