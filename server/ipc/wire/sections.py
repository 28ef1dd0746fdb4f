"""Sections of an answer. A section has free text, or text that a grammar describes. Markers lead to other sections.

A chat answer may consist of reasoning, content and function calls. The engine follows the sections to apply the right
grammar. The HTTP process follows them to tell the parts of an answer apart. Both use `MarkerScanner`, so they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import msgspec

WHITE_SPACE = " \t\n\r"


class Marker(msgspec.Struct, frozen=True, array_like=True):
    """A text or special token that ends a section.

    section: index of the section that follows.
    text: text of the marker; empty for a special token.
    token_id: id of the special token; None for a text.
    at_start: whether the marker is recognised only as the first text of its section. White space before and inside the
        marker is then ignored.
    """

    section: int
    text: str = ""
    token_id: int | None = None
    at_start: bool = False


class AnswerSection(msgspec.Struct, frozen=True, array_like=True):
    """One section of an answer. An answer begins in the first section of its list.

    markers: markers that end the section.
    grammar: grammar of the text in llguidance's format, which decides when the text may end; empty for any text.
    fallback: a grammar that allows every text of `grammar`. It replaces `grammar` as soon as `grammar` grows too
        complex or allows no token. If it is empty, the answer fails instead.
    may_end: whether the answer may end in this section. Ignored for a section with a grammar.
    """

    markers: list[Marker] = []
    grammar: str = ""
    may_end: bool = True
    fallback: str = ""


class MarkerScanner:
    """Finds the first marker in the text of one section, which arrives in pieces.

    held: the end of the text so far that may be the beginning of a marker; empty if no marker can have begun. While a
        marker at the start of the section is possible, it is the whole text.
    """

    def __init__(self, markers: Sequence[Marker]) -> None:
        self.held = ""
        self._markers = markers
        self._anywhere = [marker for marker in markers if marker.text and not marker.at_start]
        self._at_start = [marker for marker in markers if marker.text and marker.at_start]
        self._start = ""
        self._is_empty = True

    def fork(self) -> MarkerScanner:
        """A copy for another continuation of the same text."""
        return copy(self)

    @property
    def start_markers(self) -> list[tuple[Marker, str]]:
        """The `at_start` markers that are still possible, each with the rest of its text without white space."""
        return [(marker, marker.text[len(self._start) :]) for marker in self._at_start]

    def of_token(self, token_id: int) -> Marker | None:
        """The marker of a special token.

        None if no marker of this section has it, or if the marker may only be the first text.
        """
        fitting = (marker for marker in self._markers if marker.token_id == token_id)
        return next((marker for marker in fitting if self._is_empty or not marker.at_start), None)

    def push(self, text: str) -> tuple[Marker, int] | None:
        """Scan the next piece of text up to the end of the first complete marker.

        Returns the marker, and the number of characters of this piece up to the end of the marker; None without a
        complete marker. After a marker was found, the scanner must not be used again.
        """
        self._is_empty = self._is_empty and not text.strip(WHITE_SPACE)
        first = self._push_start(text)
        window = self.held + text
        ends = [
            (window.index(inside.text) + len(inside.text), inside) for inside in self._anywhere if inside.text in window
        ]
        if ends:
            end, marker = min(ends, key=lambda pair: (pair[0], -len(pair[1].text)))
            if first is None or end - len(self.held) < first[1]:
                first = marker, end - len(self.held)
        if not self._at_start:
            window = window[len(window) - self._partial(window) :]
        self.held = window
        return first

    def _push_start(self, text: str) -> tuple[Marker, int] | None:
        for index, character in enumerate(text if self._at_start else ""):
            if character in WHITE_SPACE:
                continue
            self._start += character
            self._at_start = [marker for marker in self._at_start if marker.text.startswith(self._start)]
            for marker in self._at_start:
                if marker.text == self._start:
                    return marker, index + 1
            if not self._at_start:
                break
        return None

    def _partial(self, text: str) -> int:
        """Length of the longest suffix of a text with which a marker begins; 0 if there is none."""
        longest = max((len(marker.text) for marker in self._anywhere), default=1) - 1
        ends = (text[start:] for start in range(max(0, len(text) - longest), len(text)))
        return next((len(end) for end in ends if any(marker.text.startswith(end) for marker in self._anywhere)), 0)
