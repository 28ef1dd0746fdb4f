"""Finds tokens that contain the end of a marker and more text after it.

Such a token is allowed only if the text after the marker fits the section that follows. There are few of them, so they
are found by the beginnings of tokens instead of trying every token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property

from server.ipc.sections import WHITE_SPACE, MarkerScanner

_WHITE_SPACE = WHITE_SPACE.encode()


class MarkerTokens:
    """The text tokens of a vocabulary, sorted. tokens: bytes of each token, by id; empty for special tokens."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tokens
        self._containing: dict[bytes, list[int]] = {}

    def candidates(self, scanner: MarkerScanner, texts: Sequence[str]) -> set[int]:
        """All tokens that may complete a marker before their last byte; some of them do not.

        scanner: position in a section. texts: the texts of its markers that count anywhere, as Latin-1.
        """
        found: set[int] = set()
        held = scanner.held.encode("latin-1")
        for marker in (text.encode("latin-1") for text in texts):
            found.update(self._with(marker))
            for size in range(1, len(marker)):
                if held.endswith(marker[:size]):
                    found.update(_beginning(self._sorted, marker[size:]))
        for _, rest in scanner.start_markers:
            found.update(_beginning(self._sorted_without_space, rest.encode("latin-1")))
        return found

    def _with(self, marker: bytes) -> list[int]:
        """All tokens that contain a whole marker before their last byte."""
        if marker not in self._containing:
            self._containing[marker] = [i for i, token in enumerate(self._tokens) if marker in token[:-1]]
        return self._containing[marker]

    @cached_property
    def _sorted(self) -> list[tuple[bytes, int]]:
        return sorted((token, index) for index, token in enumerate(self._tokens) if token)

    @cached_property
    def _sorted_without_space(self) -> list[tuple[bytes, int]]:
        squeezed = ((token.translate(None, _WHITE_SPACE), index) for token, index in self._sorted)
        return sorted(pair for pair in squeezed if pair[0])


def _beginning(tokens: Sequence[tuple[bytes, int]], prefix: bytes) -> Iterator[int]:
    """Ids of all tokens that begin with a prefix. tokens: sorted."""
    for place in range(bisect_left(tokens, (prefix, -1)), len(tokens)):
        token, index = tokens[place]
        if not token.startswith(prefix):
            return
        yield index
