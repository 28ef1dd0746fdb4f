"""Shorten an encoding to a maximum number of tokens. Special tokens around the text are kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal, TypeVar

from server.text.tokens.tokenizer import Encoding

TruncationSide = Literal["left", "right"]
T = TypeVar("T")


def truncate(encoding: Encoding, max_tokens: int, side: TruncationSide) -> Encoding:
    """Shorten an encoding to at most `max_tokens` tokens. Special tokens stay; text tokens are removed.

    Of a pair of texts, the longer one loses tokens first.

    side: end of the text at which tokens are removed, `left` (the beginning) or `right`.
    """
    excess = len(encoding.ids) - max_tokens
    if excess <= 0:
        return encoding
    runs = text_runs(encoding)
    left = [end - start for start, end in runs]
    while excess > 0 and any(left):
        most = max(left)
        longest = [index for index, count in enumerate(left) if count == most][:excess]
        shorter = max((count for count in left if count < most), default=0)
        each = min(most - shorter, excess // len(longest))
        for index in longest:
            left[index] -= each
        excess -= each * len(longest)
    kept, at = [], 0
    for (start, end), count in zip(runs, left, strict=True):
        kept += [(at, start), (end - count, end) if side == "left" else (start, start + count)]
        at = end
    return _pieces(encoding, [*kept, (at, len(encoding.ids))], max_tokens)


def _pieces(encoding: Encoding, spans: list[tuple[int, int]], max_tokens: int) -> Encoding:
    """Return an encoding of the tokens in some spans only, with everything that is stored per token.

    spans: (start, end) of each span, as token indices. max_tokens: most tokens of all spans together; further tokens
        are dropped.
    """

    def cut(values: Sequence[T]) -> list[T]:
        return list(chain.from_iterable(values[start:end] for start, end in spans))[:max_tokens]

    return Encoding(
        ids=cut(encoding.ids),
        type_ids=cut(encoding.type_ids),
        special=cut(encoding.special),
        offsets=cut(encoding.offsets),
        words=cut(encoding.words),
        sides=cut(encoding.sides),
    )


def text_runs(encoding: Encoding) -> list[tuple[int, int]]:
    """Return (start, end) of each run of text tokens between special tokens, as token indices."""
    runs = []
    special, end = [*encoding.special, True], 0
    while (start := _index(special, False, end)) is not None:
        end = special.index(True, start)
        runs.append((start, end))
    return runs


def _index(values: list[bool], value: bool, start: int) -> int | None:
    """Index of the first entry, from index `start` on, that equals `value`; None if there is none."""
    try:
        return values.index(value, start)
    except ValueError:
        return None
