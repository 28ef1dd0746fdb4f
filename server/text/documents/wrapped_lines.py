"""Find the lines of plain text that were broken at a width, and break their translations at the same width.

Books, letters and the notes of programmers are often stored so. Most of these lines end in the middle of a sentence, so
the lines of a paragraph are translated as one text.

A line was broken at a width if the first word of the next line does not fit at its end. Verses, lists and addresses
have shorter lines. So do texts that people break by hand, but there the sentence goes on with a small letter.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

MIN_WIDTH, MAX_WIDTH = 40, 120
"""Range of plausible widths, in characters. A longer line is a paragraph by itself."""
_MIN_WORDS = 4
"""Minimum number of words of a line that was broken. Languages without spaces between words never have as many."""
_SURE_LINES = 3
"""Number of lines that show by themselves whether they were broken. Of two lines, the longer one always looks so."""
_MANY_LINES = 100
"""A paragraph ends after so many lines where a line ends a sentence, and in any case after twice as many."""
_INDENT = re.compile(r"[\s>]*")
"""White space before a line, and the marks of a quoted letter."""
_ITEM = re.compile(r"(?:[-*+•–—]|\(?(?:\d{1,3}|[A-Za-z])[.)])\s")
"""The beginning of an item of a list."""
_COLUMNS = re.compile(r"\S(?:\s{3,}|\t)\S|[|│┃]|([^\w\s])\1{4}")
"""Signs of a table or a drawing: columns, bars, and rows of one character."""
_HYPHEN = re.compile(r"[^\W\d_]-$")
_QUOTES = "\"'`“„«‘(["
_SENTENCE_END = re.compile(r"[.!?\u2026\u0964\u061f]\W*$")
_LEAST_FILLED = 0.75
"""Smallest part of the width that a line has which somebody broke by hand."""


@dataclass(frozen=True)
class WrappedLines:
    """The lines of one paragraph, which were broken at a width.

    lines: the lines as they are in the file, each with its line break. text: the paragraph on one line.
    width: number of characters of the longest line.
    """

    lines: Sequence[str]
    text: str
    width: int

    def broken(self, text: str) -> str:
        """Break a text at the width, with the line breaks and the indentation of the paragraph.

        A word that is longer than the width has a line of its own. The last line has no line break.
        """
        lines = textwrap.wrap(
            text,
            self.width,
            initial_indent=_indent(self.lines[0]),
            subsequent_indent=_indent(self.lines[1]),
            break_long_words=False,
            break_on_hyphens=False,
        )
        return line_break(self.lines[0]).join(lines)


def line_break(line: str) -> str:
    """The characters that end a line; empty for the last line of a file that ends without them."""
    return line[len(line.rstrip("\r\n")) :]


def with_paragraphs(lines: Sequence[str]) -> list[str | WrappedLines]:
    """Join the lines of paragraphs that were broken at a width. Other lines stay. lines: with their line breaks."""
    groups = list(_groups(lines))
    sure = [width for group in groups if len(group) >= _SURE_LINES and (width := _width(group, MIN_WIDTH))]
    usual = int(median(sure)) if sure else MAX_WIDTH + 1
    found: list[str | WrappedLines] = []
    for group in groups:
        width = _width(group, MIN_WIDTH if len(group) >= _SURE_LINES else usual)
        found += [WrappedLines(group, _joined(group), width)] if width else group
    return found


def _groups(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    """Divide lines where a paragraph may begin: at blank lines, items of a list, and changes of the indentation.

    A paragraph of very many lines is divided too. The second line of a paragraph may have another indentation than the
    first one.
    """
    start = 0
    for place in range(1, len(lines)):
        before, line = lines[place - 1], lines[place]
        changes = place > start + 1 and _indent(line) != _indent(before)
        count = place - start
        is_full = count >= _MANY_LINES and (_SENTENCE_END.search(before[-20:]) or count >= 2 * _MANY_LINES)
        if not _text(before) or not _text(line) or changes or is_full or _ITEM.match(_text(line)):
            yield lines[start:place]
            start = place
    if lines:
        yield lines[start:]


def _width(lines: Sequence[str], least: int) -> int:
    """Width at which lines were broken; 0 if they are no such paragraph. least: smallest plausible width."""
    shown = [line.rstrip() for line in lines]
    width = max(least, *map(len, shown))
    if len(lines) < 2 or width > MAX_WIDTH or any(map(_COLUMNS.search, shown)):
        return 0
    texts = list(map(_text, lines))
    has_case = any(map(str.islower, "".join(texts)))
    continues = [
        _SENTENCE_END.search(text) is None and (following.lstrip(_QUOTES)[:1].islower() or not has_case)
        for text, following in pairwise(texts)
    ]
    for line, text, following, goes_on in zip(shown, texts, texts[1:], continues, strict=False):
        is_full = len(line) + 1 + len(following.split()[0]) > width
        is_nearly_full = has_case and goes_on and len(line) >= _LEAST_FILLED * width
        if len(text.split()) < _MIN_WORDS or not (is_full or is_nearly_full):
            return 0
    return width if any(continues) else 0


def _indent(line: str) -> str:
    match = _INDENT.match(line)
    return match[0] if match else ""


def _text(line: str) -> str:
    """A line without indentation and white space at its end."""
    return line[len(_indent(line)) :].rstrip()


def _joined(lines: Sequence[str]) -> str:
    texts = list(map(_text, lines))
    spaces = ["" if _HYPHEN.search(text) else " " for text in texts[:-1]]
    return "".join([part for pair in zip(texts, [*spaces, ""], strict=True) for part in pair])
