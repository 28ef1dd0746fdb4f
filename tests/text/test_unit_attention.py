"""The attention of a translation's words on a part of the source, against sums over all characters."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from server.text.markup.placed_tags import Span
from server.text.markup.unit_attention import TokenAlignment, UnitAttention


def parts(rng: random.Random, length: int, count: int) -> list[Span]:
    """`count` neighbouring ranges that cover `length` characters; some are empty."""
    return list(pairwise(sorted([0, length, *(rng.randint(0, length) for _ in range(count - 1))])))


def test_shares_are_sums_over_the_tokens_of_a_unit() -> None:
    rng = random.Random(0)
    for _ in range(300):
        source, target = parts(rng, 30, rng.randint(1, 9)), parts(rng, 30, rng.randint(1, 9))
        units = [span for span in parts(rng, 30, 6) if span[0] < span[1]]
        weights = np.random.default_rng(rng.randrange(100)).uniform(0.1, 1, (len(target), len(source) + 1))
        start, end = sorted(rng.sample(range(31), 2))
        found = UnitAttention(units, TokenAlignment([*source, (0, 0)], target, weights.astype(np.float32))).shares(
            start, end
        )
        for unit, share in zip(units, found, strict=True):
            rows = [row for row, token in enumerate(target) if token[0] < unit[1] and token[1] > unit[0]]
            by_token = weights[rows].sum(0)
            total = sum(by_token[index] for index, (first, last) in enumerate(source) if first < last)
            own = sum(
                by_token[index] / (last - first)
                for index, (first, last) in enumerate(source)
                for place in range(first, last)
                if start <= place < end
            )
            assert share == pytest.approx(own / total if total else 0.0, abs=1e-6)


def test_a_word_that_attends_to_special_tokens_has_no_share() -> None:
    weights = np.array([[0.04, 0.96], [0.5, 0.5]], np.float32)
    attention = UnitAttention([(0, 4), (5, 9)], TokenAlignment([(0, 5), (0, 0)], [(0, 4), (5, 9)], weights))
    assert attention.shares(0, 5) == [0.0, 1.0]
