"""Finding loops in translations: repetitions that the source text does not have."""

from __future__ import annotations

import random

import pytest

from server.operations.translating.loops import MAX_PERIOD, loops


@pytest.mark.parametrize("period", [1, 2, 3, 7, MAX_PERIOD])
def test_repeated_parts_are_loops_wherever_they_are(period: int) -> None:
    part = list(range(100, 100 + period))
    repeated = part * max(4, -(-12 // period))
    for before, after in (([], []), ([1, 2, 3], []), ([], [4]), ([1, 2, 3], [5, 6])):
        assert loops([*before, *repeated, *after])


@pytest.mark.parametrize(
    "ids",
    [
        [],
        [7] * 11,  # "no, no, no": an exclamation
        [1, 2, 3, 4, 5, 6] * 3,
        list(range(200)),
        [number for pair in zip(range(100), [7] * 100, strict=True) for number in pair],  # a comma after each word
        list(range(MAX_PERIOD + 1)) * 4,
    ],
)
def test_other_texts_are_none(ids: list[int]) -> None:
    assert not loops(ids)


def test_random_texts_are_none() -> None:
    seeded = random.Random(3)
    assert not any(loops([seeded.randrange(30) for _ in range(200)]) for _ in range(50))
