"""A text with marks at the special tokens that are only text, for example because a user typed them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class MarkedText:
    """A text with marks. A special token with a mark inside it, or at its end, is read as ordinary text.

    marks: positions of the marks as character indices, ascending.
    """

    text: str
    marks: Sequence[int] = ()

    def pieces(self) -> list[str]:
        """Return the text in pieces, cut at the marks."""
        cuts = [0, *self.marks, len(self.text)]
        return [self.text[start:end] for start, end in pairwise(cuts)]


def token_spans(pattern: re.Pattern[str], marked: MarkedText) -> list[tuple[int, int, int | None]]:
    """Find the special tokens in a marked text. pattern: finds the texts of special tokens.

    Returns (start, end, mark) of each; mark is the index of the first mark in it, or None for a real special token.
    """
    spans: list[tuple[int, int, int | None]] = []
    marks, index = marked.marks, 0
    for match in pattern.finditer(marked.text):
        start, end = match.span()
        while index < len(marks) and marks[index] <= start:
            index += 1
        is_text = index < len(marks) and marks[index] <= end
        spans.append((start, end, marks[index] if is_text else None))
    return spans
