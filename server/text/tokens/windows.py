"""Split a long text into overlapping windows that a model can read. Special tokens are in every window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from server.text.tokens.tokenizer import Encoding


@dataclass(frozen=True)
class TokenWindow:
    """Indices of an encoding's tokens, in order: the text tokens of the window, and all tokens around the text.

    before, text, after: the tokens before the text, the window's part of the text, and the tokens after the text.
    """

    before: range
    text: range
    after: range

    def __iter__(self) -> Iterator[int]:
        return chain(self.before, self.text, self.after)

    def __len__(self) -> int:
        return len(self.before) + len(self.text) + len(self.after)


def windows(encoding: Encoding, run: tuple[int, int], max_tokens: int, stride: int) -> list[TokenWindow]:
    """Windows over the text tokens `run`, each with the last `stride` text tokens of the window before it.

    run: (start, end) of the tokens that are split; all other tokens are in every window.
    max_tokens: length of a window, with the tokens around the text.
    stride: less than `window_room(encoding, run, max_tokens)`.
    """
    start, end = run
    width = window_room(encoding, run, max_tokens)
    assert 0 <= stride < width, "a window must start after the one before it"
    found = []
    for first in range(start, max(end, start + 1), width - stride):
        last = min(first + width, end)
        found.append(TokenWindow(range(start), range(first, last), range(end, len(encoding.ids))))
        if last == end:
            break
    return found


def window_room(encoding: Encoding, run: tuple[int, int], max_tokens: int) -> int:
    """Number of text tokens that fit into one window."""
    return max_tokens - (len(encoding.ids) - (run[1] - run[0]))
