"""Read and write plain text files, JSON files (their string values), and subtitles (SubRip, WebVTT)."""

from __future__ import annotations

import json
import re
import textwrap
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from server.text.documents.inline import Fragment, text_of
from server.text.documents.units import Document, DocumentError, TextDocument, TextUnit, decoded

_PARAGRAPH_END = re.compile(r"((?:\r\n|\r|\n)(?:[^\S\r\n]*(?:\r\n|\r|\n))*)")
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_BLANK_LINES = re.compile(r"((?:\r\n|\r(?!\n)|\n)(?:[^\S\r\n]*(?:\r\n|\r|\n))+)")
_NEWLINE = re.compile(r"\r\n|\r|\n")
_CUE_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z.\d]*)?[^<>]{0,200}>|\{\\[^{}]{1,200}\}")
_SPEAKER = re.compile(r"\s*[-\u2010-\u2015]")
_PAIRED = frozenset({"b", "i", "u", "c", "v", "lang", "font", "ruby", "rt"})


def read_text(data: bytes) -> Document:
    """Split a plain text file into units: each line that is not blank is one.

    Raises DocumentError for a file that is neither UTF-8 nor UTF-16, or has too many lines.
    """
    text, encoding = decoded(data)
    document = TextDocument(encoding=encoding)
    for index, part in enumerate(_PARAGRAPH_END.split(text)):
        is_text = index % 2 == 0 and part.strip()
        document.parts.append(document.add(TextUnit(part)) if is_text else part)
    return document


class JsonDocument(TextDocument):
    """A JSON file whose string values are translated. Keys, numbers and layout stay.

    originals: the string of each unit as it is written in the file, by the unit's index.
    """

    def shown(self, place: int, translation: str) -> str:
        if translation == self.units[place].text:
            return self.originals[place]
        return json.dumps(translation, ensure_ascii=False)

    def __init__(self, encoding: str) -> None:
        super().__init__(encoding=encoding)
        self.originals: list[str] = []


def read_json(data: bytes) -> Document:
    """Parse a JSON file. Its string values become units, except blank ones.

    Raises DocumentError for a file that is not JSON, is nested too deep, or has too many strings.
    """
    text, encoding = decoded(data)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise DocumentError("the file is not JSON, or is nested too deep") from None
    document = JsonDocument(encoding)
    at = 0
    for match in _JSON_STRING.finditer(text):
        value = json.loads(match[0], strict=False)
        is_key = text[match.end() : match.end() + 256].lstrip()[:1] == ":"
        if is_key or not value.strip():
            continue
        document.parts += [text[at : match.start()], document.add(TextUnit(value))]
        document.originals.append(match[0])
        at = match.end()
    document.parts.append(text[at:])
    return document


@dataclass
class _Cue:
    """The text of one subtitle, or of one speaker in a subtitle. lines: number of lines that it has in the file."""

    fragment: Fragment
    lines: int


@dataclass
class SubtitleDocument(TextDocument):
    """A file of subtitles. newline: line break of the file. cues: text of each unit, by the unit's index."""

    newline: str = "\n"
    cues: list[_Cue] = field(default_factory=list)

    def shown(self, place: int, translation: str) -> str:
        cue = self.cues[place]
        return self.newline.join(_wrapped(text_of(cue.fragment.restored(translation)), cue.lines))


def _wrapped(text: str, lines: int) -> Sequence[str]:
    """Break a text into at most `lines` lines of about the same length."""
    text = " ".join(text.split())
    if lines == 1 or not text:
        return [text]

    def wrapped(width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

    # The smallest width that suffices. Wider lines are never more lines.
    widths = range(-(-len(text) // lines), len(text) + 1)
    return wrapped(widths[bisect_left(widths, True, key=lambda width: len(wrapped(width)) <= lines)])


def read_subtitles(data: bytes) -> Document:
    """Parse subtitles in SubRip or WebVTT format. Blocks without a time line, such as notes and styles, stay.

    Raises DocumentError for a file that is neither UTF-8 nor UTF-16, or has too many subtitles.
    """
    text, encoding = decoded(data)
    newline = match[0] if (match := _NEWLINE.search(text)) else "\n"
    document = SubtitleDocument(encoding=encoding, newline=newline)
    for index, block in enumerate(_BLANK_LINES.split(text)):
        lines = _NEWLINE.split(block) if index % 2 == 0 else [block]
        times = next((place for place, line in enumerate(lines[:3]) if "-->" in line), None)
        if index % 2 or times is None:
            document.parts.append(block)
            continue
        document.parts.append("".join(f"{line}{newline}" for line in lines[: times + 1]).removesuffix(newline))
        texts = lines[times + 1 :]
        ending = texts.pop() if texts and not texts[-1] else None
        for group in _speakers(texts):
            document.parts.append(newline)
            if not any(map(str.strip, group)):
                document.parts.append(newline.join(group))
                continue
            cue = _Cue(_cue(" ".join(group)), len(group))
            document.parts.append(document.add(cue.fragment.unit()))
            document.cues.append(cue)
        document.parts += [newline] if ending is not None else []
    return document


def _speakers(lines: Sequence[str]) -> list[list[str]]:
    """Divide the lines of a subtitle by speaker. A line that begins with a dash starts the next speaker's lines."""
    groups: list[list[str]] = []
    for line in lines:
        if not groups or _SPEAKER.match(line):
            groups.append([])
        groups[-1].append(line)
    return groups


def _cue(text: str) -> Fragment:
    """Parse the text of a subtitle. Pairs of tags become formatting.

    A tag without a partner, and a command in braces such as `{\\an8}`, become objects without text.
    """
    partners = _partners(text)
    fragment, at = Fragment(), 0
    for place, match in enumerate(_CUE_TAG.finditer(text)):
        fragment.text(text[at : match.start()])
        at = match.end()
        if place not in partners:
            fragment.atom(match[0])
        elif match[1]:
            fragment.close()
        else:
            fragment.open((match[0], partners[place]))
    fragment.text(text[at:])
    return fragment


def _partners(text: str) -> dict[int, str]:
    """Find the pairs of start and end tags in a subtitle.

    Returns the text of the end tag of each pair, by the indices of both tags among all tags of the subtitle.
    """
    opened: list[tuple[int, Any]] = []
    found: dict[int, str] = {}
    for place, match in enumerate(_CUE_TAG.finditer(text)):
        name = (match[2] or "").partition(".")[0].lower()
        if name not in _PAIRED:
            continue
        if not match[1]:
            opened.append((place, name))
        elif opened and opened[-1][1] == name:
            found[place] = found[opened.pop()[0]] = match[0]
    return found
