"""Read and write subtitles (SubRip, WebVTT).

A sentence often goes on in the next subtitle. It is translated as one text, and the translation is divided among its
subtitles in proportion to the lengths of their texts, because each is shown as long as its text takes to read.
"""

from __future__ import annotations

import re
import textwrap
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from server.text.documents.inline import Fragment, text_of
from server.text.documents.units import Document, TextDocument, decoded

MAX_SUBTITLES = 6
"""Maximum number of subtitles whose texts are translated as one sentence."""
_MIN_WORDS = 3
"""Minimum number of words of a subtitle whose sentence may go on in the next one."""
_BLANK_LINES = re.compile(r"((?:\r\n|\r(?!\n)|\n)(?:[^\S\r\n]*(?:\r\n|\r|\n))+)")
_NEWLINE = re.compile(r"\r\n|\r|\n")
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z.\d]*)?[^<>]{0,200}>|\{\\[^{}]{1,200}\}")
_SPEAKER = re.compile(r"\s*[-\u2010-\u2015]")
_PAIRED = frozenset({"b", "i", "u", "c", "v", "lang", "font", "ruby", "rt"})
_UNFINISHED = re.compile(r"[\w,]$")
_PAUSE = re.compile(r"[,;:.!?…]$")
_PAUSE_CHARACTERS = 8
"""A division after a punctuation mark may be so many characters farther from the right place than one inside a
clause."""


@dataclass
class _Cue:
    """The text of one subtitle, or of one speaker in a subtitle.

    source: the text as it is in the file. text: the text on one line. lines: number of its lines.
    is_alone: whether it is all the text of its subtitle.
    """

    source: str
    text: str
    lines: int
    is_alone: bool

    def goes_on_in(self, following: _Cue) -> bool:
        """Whether a sentence of this subtitle goes on in the next one. Only true for texts without tags."""
        return (
            self.is_alone
            and following.is_alone
            and _UNFINISHED.search(self.text) is not None
            and following.text[:1].islower()
            and len(self.text.split()) >= _MIN_WORDS
            and not _TAG.search(self.text)
            and not _TAG.search(following.text)
        )


class _Sentence(NamedTuple):
    """Subtitles that are translated together. fragment: their texts on one line."""

    fragment: Fragment
    cues: list[_Cue]


@dataclass
class SubtitleDocument(TextDocument):
    """A file of subtitles. The integers in `parts` are indices of subtitles.

    newline: line break of the file. sentences: subtitles of each unit, by the unit's index.
    """

    newline: str = "\n"
    sentences: list[_Sentence] = field(default_factory=list)

    def write(self, translations: Sequence[str], target_lang: str) -> bytes:
        texts: list[str] = []
        for unit, (fragment, cues), translation in zip(self.units, self.sentences, translations, strict=True):
            if translation == unit.text:
                texts += [cue.source for cue in cues]
                continue
            text = text_of(fragment.restored(translation))
            divided = [text] if len(cues) == 1 else _divided(text, [len(cue.text) for cue in cues])
            texts += [self.newline.join(_wrapped(part, cue.lines)) for cue, part in zip(cues, divided, strict=True)]
        return super().write(texts, target_lang)


def read_subtitles(data: bytes) -> Document:
    """Parse subtitles in SubRip or WebVTT format. Blocks without a time line, such as notes and styles, stay.

    Raises DocumentError for a file that is neither UTF-8 nor UTF-16, or has too many subtitles.
    """
    text, encoding = decoded(data)
    newline = match[0] if (match := _NEWLINE.search(text)) else "\n"
    document = SubtitleDocument(encoding=encoding, newline=newline)
    cues: list[_Cue] = []
    for index, block in enumerate(_BLANK_LINES.split(text)):
        lines = _NEWLINE.split(block) if index % 2 == 0 else [block]
        times = next((place for place, line in enumerate(lines[:3]) if "-->" in line), None)
        if index % 2 or times is None:
            document.parts.append(block)
            continue
        document.parts.append("".join(f"{line}{newline}" for line in lines[: times + 1]).removesuffix(newline))
        texts = lines[times + 1 :]
        ending = texts.pop() if texts and not texts[-1] else None
        speakers = _speakers(texts)
        for group in speakers:
            document.parts.append(newline)
            if not any(map(str.strip, group)):
                document.parts.append(newline.join(group))
                continue
            document.parts.append(len(cues))
            cues.append(_Cue(newline.join(group), " ".join(group), len(group), len(speakers) == 1))
        document.parts += [newline] if ending is not None else []
    for sentence in _sentences(cues):
        fragment = _fragment(" ".join([cue.text for cue in sentence]))
        document.add(fragment.unit())
        document.sentences.append(_Sentence(fragment, sentence))
    return document


def _sentences(cues: Sequence[_Cue]) -> Iterator[list[_Cue]]:
    """Join subtitles through which a sentence goes on."""
    sentence: list[_Cue] = []
    for cue in cues:
        if sentence and (len(sentence) == MAX_SUBTITLES or not sentence[-1].goes_on_in(cue)):
            yield sentence
            sentence = []
        sentence.append(cue)
    if sentence:
        yield sentence


def _divided(text: str, lengths: Sequence[int]) -> list[str]:
    """Divide the translation of a sentence among its subtitles: between words, or characters if it has too few words.

    lengths: for each subtitle, the length of its own text. The lengths of the parts are in this proportion.
    """
    words = text.split()
    space = " " if len(words) >= len(lengths) else ""
    pieces = words if space else list("".join(words))
    ends = list(accumulate(len(piece) + len(space) for piece in pieces))
    parts, start = [], 0
    for place, share in enumerate(accumulate(lengths[:-1]), 1):
        wanted = share * (ends[-1] if ends else 0) / sum(lengths)
        left = len(lengths) - place  # each later part needs a piece
        possible = range(start + 1, max(start + 1, len(pieces) - left) + 1)

        def distance(end: int, wanted: float = wanted) -> float:
            pause = _PAUSE_CHARACTERS if _PAUSE.search(pieces[end - 1]) else 0
            return abs(ends[end - 1] - wanted) - pause

        end = min((end for end in possible if end <= len(pieces)), key=distance, default=start)
        parts.append(space.join(pieces[start:end]))
        start = end
    return [*parts, space.join(pieces[start:])]


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


def _speakers(lines: Sequence[str]) -> list[list[str]]:
    """Divide the lines of a subtitle by speaker. A line that begins with a dash starts the next speaker's lines."""
    groups: list[list[str]] = []
    for line in lines:
        if not groups or _SPEAKER.match(line):
            groups.append([])
        groups[-1].append(line)
    return groups


def _fragment(text: str) -> Fragment:
    """Parse the text of a subtitle. Pairs of tags become formatting.

    A tag without a partner, and a command in braces such as `{\\an8}`, become objects without text.
    """
    partners = _partners(text)
    fragment, at = Fragment(), 0
    for place, match in enumerate(_TAG.finditer(text)):
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
    for place, match in enumerate(_TAG.finditer(text)):
        name = (match[2] or "").partition(".")[0].lower()
        if name not in _PAIRED:
            continue
        if not match[1]:
            opened.append((place, name))
        elif opened and opened[-1][1] == name:
            found[place] = found[opened.pop()[0]] = match[0]
    return found
