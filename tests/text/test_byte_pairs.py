"""Byte-pair merges equal those of the published algorithm, which searches the whole word for each merge."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from itertools import pairwise

from server.text.tokenizers.byte_pairs import BytePairs


def reference(symbols: list[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Merge all occurrences of the pair with the lowest rank, until no pair has a rank (Sennrich et al. 2016)."""
    while len(symbols) > 1:
        pair = min(pairwise(symbols), key=lambda pair: ranks.get(pair, math.inf))
        if pair not in ranks:
            break
        merged: list[str] = []
        index = 0
        while index < len(symbols):
            if tuple(symbols[index : index + 2]) == pair:
                merged.append(pair[0] + pair[1])
                index += 2
            else:
                merged.append(symbols[index])
                index += 1
        symbols = merged
    return symbols


def test_random_tables() -> None:
    """The merges have random ranks, which no training gives, and words have runs of one letter."""
    chooser = random.Random(1)
    for _ in range(300):
        parts = ["a", "b", "c"]
        pairs = list[tuple[str, str]]()
        for _ in range(chooser.randrange(1, 25)):
            pair = chooser.choice(parts), chooser.choice(parts)
            pairs.append(pair)
            parts.append("".join(pair))
        chooser.shuffle(pairs)
        ours, ranks = BytePairs(pairs), {pair: rank for rank, pair in enumerate(pairs)}
        for _ in range(10):
            symbols = [chooser.choice("abc") for _ in range(chooser.randrange(0, 30))]
            assert ours.merge(symbols) == reference(symbols, ranks), (pairs, symbols)


def test_a_long_word() -> None:
    """The time grows with n log n. To search the whole word for each merge would take hours."""
    pairs = BytePairs([("a", "b"), ("ab", "ab"), ("abab", "abab")])
    assert pairs.merge("ab" * 400_000) == ["abababab"] * 100_000
