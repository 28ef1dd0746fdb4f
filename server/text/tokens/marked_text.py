"""A text with places that tell which of its special tokens are text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class MarkedText:
    """A text with marks. A special token with a mark inside it, or at its end, is read as text.

    marks: indices of characters, ascending.
    """

    text: str
    marks: Sequence[int] = ()

    def pieces(self) -> list[str]:
        """The text, cut at the marks."""
        cuts = [0, *self.marks, len(self.text)]
        return [self.text[start:end] for start, end in pairwise(cuts)]


def token_spans(pattern: re.Pattern[str], marked: MarkedText) -> list[tuple[int, int, int | None]]:
    """The tokens of a pattern in a text: start, end, and for a token that is text its first mark, else None."""
    spans: list[tuple[int, int, int | None]] = []
    marks, index = marked.marks, 0
    for match in pattern.finditer(marked.text):
        start, end = match.span()
        while index < len(marks) and marks[index] <= start:
            index += 1
        is_text = index < len(marks) and marks[index] <= end
        spans.append((start, end, marks[index] if is_text else None))
    return spans
