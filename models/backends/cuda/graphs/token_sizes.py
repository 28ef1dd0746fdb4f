"""Numbers of tokens for which steps are captured, and the choice among them. Imports no torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

MAX_PADDING = 2
"""Largest ratio of the size of a captured step to its tokens. Fewer than `MIN_TOKENS` tokens count as `MIN_TOKENS`."""
MIN_TOKENS = 64
"""Up to this number of tokens, the duration of a step hardly depends on the number."""
MIN_TEXT_TOKENS = 8
"""A captured step of texts has room for texts of at least this many tokens on average."""
TOKEN_SIZES = (
    *(8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 640, 768, 896),
    *(1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 10240, 12288, 14336, 16384),
)
"""Numbers of tokens for which a step of texts, or a step with prefill, may be captured. From 512 on, a step has at most
a quarter more tokens than it needs."""


def sizes_up_to(tokens: int) -> tuple[int, ...]:
    """Sizes of captured steps of up to `tokens` tokens: `TOKEN_SIZES` up to the first size with enough room."""
    return TOKEN_SIZES[: bisect_left(TOKEN_SIZES, tokens) + 1]


def smallest_size(sizes: Sequence[int], tokens: int) -> int | None:
    """The smallest size with room for `tokens` tokens; None if there is none, or if `MAX_PADDING` excludes it.

    sizes: in ascending order.
    """
    place = bisect_left(sizes, tokens)
    if place == len(sizes) or sizes[place] > MAX_PADDING * max(tokens, MIN_TOKENS):
        return None
    return sizes[place]
