"""Split the tokens of a long text into overlapping windows that fit a model. Special tokens are in every window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from server.text.tokens.tokenizer import Encoding


@dataclass(frozen=True)
class TokenWindow:
    """One window of a text, as indices into the tokens of its encoding. Iterates over the indices in order.

    before, after: indices of the tokens before and after the text, which are in every window.
    text: indices of the text tokens in this window.
    """

    before: range
    text: range
    after: range

    def __iter__(self) -> Iterator[int]:
        return chain(self.before, self.text, self.after)

    def __len__(self) -> int:
        return len(self.before) + len(self.text) + len(self.after)


def windows(encoding: Encoding, run: tuple[int, int], max_tokens: int, stride: int) -> list[TokenWindow]:
    """Split the text tokens of an encoding into windows. Each window repeats the last `stride` text tokens before it.

    run: (start, end) of the text tokens to split, as token indices. All other tokens are in every window.
    max_tokens: most tokens of a window, including the tokens around the text.
    stride: number of shared tokens; it must be less than `window_room(encoding, run, max_tokens)`.
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
    """Number of text tokens that fit into one window. The arguments are those of `windows`."""
    return max_tokens - (len(encoding.ids) - (run[1] - run[0]))
