"""Finds tokens that contain the end of a marker and more text after it.

Such a token is allowed only if the text after the marker fits the section that follows. Such tokens are few. They are
found by an index of the first bytes of tokens, because trying every token would be slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from server.ipc.wire.sections import WHITE_SPACE, MarkerScanner

_WHITE_SPACE = WHITE_SPACE.encode()
MAX_CACHED = 256
"""Size of the caches: markers, and parts of markers, whose tokens are kept. A tool format has about ten markers."""


class MarkerTokens:
    """Finds the tokens of a vocabulary whose text contains or begins a marker, such as `</think>`.

    The tokens found for the last `MAX_CACHED` markers are cached. The cache is limited, because requests can define
    markers.

    tokens: bytes of each token, by id; empty for special tokens.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tokens
        self._containing: dict[bytes, list[int]] = {}
        self._beginning: dict[tuple[bytes, bool], list[int]] = {}

    def candidates(self, scanner: MarkerScanner, texts: Sequence[str]) -> set[int]:
        """All tokens that complete a marker and contain more text after it. Some other tokens may be included.

        scanner: position in a section.
        texts: bytes, decoded as Latin-1, of the section's markers that may stand anywhere in the text.
        """
        found: set[int] = set()
        held = scanner.held.encode("latin-1")
        for marker in (text.encode("latin-1") for text in texts):
            found.update(self._with(marker))
            for size in range(1, len(marker)):
                if held.endswith(marker[:size]):
                    found.update(self._beginning_with(marker[size:], False))
        for _, rest in scanner.start_markers:
            found.update(self._beginning_with(rest.encode("latin-1"), True))
        return found

    def _with(self, marker: bytes) -> list[int]:
        """All tokens that contain a whole marker and more text after it."""
        if marker not in self._containing:
            _make_room(self._containing)
            containing = (index for index, token in enumerate(self._tokens) if marker in token)
            self._containing[marker] = [index for index in containing if marker in self._tokens[index][:-1]]
        return self._containing[marker]

    def _beginning_with(self, text: bytes, without_space: bool) -> list[int]:
        """All tokens that begin with a text and are longer than it.

        without_space: ignore white space in the tokens in the comparison.
        """
        key = text, without_space
        if key not in self._beginning:
            _make_room(self._beginning)
            places = (*self._by_first_byte[text[0]], *(self._after_space if without_space else ()))
            ignored = _WHITE_SPACE if without_space else b""
            named = ((index, self._tokens[index]) for index in places)
            self._beginning[key] = [
                index
                for index, token in named
                if len(token) > len(text) and token.translate(None, ignored).startswith(text)
            ]
        return self._beginning[key]

    @cached_property
    def _by_first_byte(self) -> dict[int, list[int]]:
        indices: dict[int, list[int]] = defaultdict(list)
        for index, token in enumerate(self._tokens):
            if token:
                indices[token[0]].append(index)
        return indices

    @cached_property
    def _after_space(self) -> list[int]:
        """Indices of all tokens that have white space before other text."""
        spaces = (index for byte in _WHITE_SPACE for index in self._by_first_byte[byte])
        return [index for index in spaces if self._tokens[index].strip(_WHITE_SPACE)]


def _make_room(cache: dict[Any, list[int]]) -> None:
    """Delete the oldest entries of a cache until it has room for one more."""
    while len(cache) >= MAX_CACHED:
        del cache[next(iter(cache))]
