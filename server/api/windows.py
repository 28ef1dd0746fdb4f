"""A text that is longer than the model reads, as windows that overlap; what stands around the text is in each."""

from __future__ import annotations

from server.ipc.messages import EncodeItem
from server.text.tokenizer import Encoding

Window = list[int]
"""Indices of an encoding's tokens, in order: those of the window, and all that stand around the text."""


def windows(encoding: Encoding, run: tuple[int, int], limit: int, stride: int) -> list[Window]:
    """Windows of at most `limit` tokens over the tokens of `run`, each with `stride` tokens of the one before.

    run: (start, end) of what may be cut; the rest is in every window. stride: less than `room(encoding, run, limit)`.
    """
    start, end = run
    width = room(encoding, run, limit)
    assert 0 <= stride < width, "windows have to move"
    found = []
    for first in range(start, max(end, start + 1), width - stride):
        last = min(first + width, end)
        found.append([*range(start), *range(first, last), *range(end, len(encoding.ids))])
        if last == end:
            break
    return found


def room(encoding: Encoding, run: tuple[int, int], limit: int) -> int:
    """How many tokens of the text one window holds."""
    return limit - (len(encoding.ids) - (run[1] - run[0]))


def window_item(encoding: Encoding, window: Window) -> EncodeItem:
    """What the worker needs of a window."""
    types = [encoding.type_ids[index] for index in window]
    return EncodeItem([encoding.ids[index] for index in window], types if any(types) else None)
