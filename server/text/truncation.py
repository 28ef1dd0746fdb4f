"""Shorten an encoding to a number of tokens, keeping the special tokens around the text."""

from __future__ import annotations

from typing import Literal

from server.text.tokenizer import Encoding

TruncationSide = Literal["left", "right"]


def truncate(encoding: Encoding, max_tokens: int, side: TruncationSide) -> Encoding:
    """At most `max_tokens` tokens of an encoding. Special tokens stay; text tokens are removed on one side.

    Of a pair of texts, the longer one loses tokens first.
    """
    excess = len(encoding.ids) - max_tokens
    if excess <= 0:
        return encoding
    kept = {start: list(range(start, end)) for start, end in text_runs(encoding)}
    while excess > 0 and any(kept.values()):
        longest = max(kept.values(), key=len)
        others = max((len(run) for run in kept.values() if run is not longest), default=0)
        count = min(excess, max(1, len(longest) - others), len(longest))
        del longest[slice(0, count) if side == "left" else slice(len(longest) - count, None)]
        excess -= count
    text = {index for run in kept.values() for index in run}
    return select(encoding, [i for i in range(len(encoding.ids)) if encoding.special[i] or i in text][:max_tokens])


def select(encoding: Encoding, indices: list[int]) -> Encoding:
    """The tokens of an encoding at these indices, with everything that is stored per token."""
    return Encoding(
        ids=[encoding.ids[index] for index in indices],
        type_ids=[encoding.type_ids[index] for index in indices],
        special=[encoding.special[index] for index in indices],
        offsets=[encoding.offsets[index] for index in indices] if encoding.offsets else [],
        words=[encoding.words[index] for index in indices] if encoding.words else [],
        sides=[encoding.sides[index] for index in indices] if encoding.sides else [],
    )


def text_runs(encoding: Encoding) -> list[tuple[int, int]]:
    """(start, end) of each run of text tokens between special tokens."""
    runs = []
    start: int | None = None
    for index, special in enumerate([*encoding.special, True]):
        if special and start is not None:
            runs.append((start, index))
            start = None
        elif not special and start is None:
            start = index
    return runs
