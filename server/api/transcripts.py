"""A transcript as clients want it: text, subtitles, JSON. Knows parts and seconds; no requests and no engine."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from server.text.speech import SpeechTokens
from server.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Line:
    """A part of the text as it is shown. text: with the space that it begins with. tokens: times included."""

    start: float
    end: float
    text: str
    tokens: list[int]
    window: int
    mean_logprob: float | None


def words_of(tokens: Sequence[int], special: SpeechTokens, tokenizer: Tokenizer) -> str:
    """The text that tokens spell; times and other special tokens say nothing."""
    return tokenizer.decode([token for token in tokens if token < special.first_timestamp], skip_special_tokens=True)


def srt(lines: Sequence[Line]) -> str:
    """SubRip: a number, a time, a text, an empty line."""
    return "".join(
        f"{number}\n{_clock(line.start, ',')} --> {_clock(line.end, ',')}\n{_cue(line)}\n\n"
        for number, line in enumerate(lines, 1)
    )


def vtt(lines: Sequence[Line]) -> str:
    """WebVTT (W3C, 4 April 2019)."""
    cues = [f"{_clock(line.start, '.')} --> {_clock(line.end, '.')}\n{_cue(line)}\n\n" for line in lines]
    return "WEBVTT\n\n" + "".join(cues)


def segments_json(lines: Sequence[Line], temperature: float) -> list[dict[str, Any]]:
    """As the OpenAI API has them; `seek` counts frames of 10 ms."""
    return [
        {
            "id": number,
            "seek": line.window,
            "start": round(line.start, 3),
            "end": round(line.end, 3),
            "text": line.text,
            "tokens": line.tokens,
            "temperature": temperature,
            "avg_logprob": line.mean_logprob,
            "compression_ratio": _compression(line.text),
        }
        for number, line in enumerate(lines)
    ]


def _cue(line: Line) -> str:
    """An arrow would begin another cue."""
    return line.text.strip().replace("-->", "->")


def _clock(seconds: float, point: str) -> str:
    milliseconds = math.floor(seconds * 1000 + 0.5)
    rest, thousandths = divmod(milliseconds, 1000)
    minutes, second = divmod(rest, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}{point}{thousandths:03d}"


def _compression(text: str) -> float:
    data = text.encode()
    return len(data) / len(zlib.compress(data))
