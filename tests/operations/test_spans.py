"""Answer spans from start and end logits: which spans are allowed, and their scores."""

from __future__ import annotations

import numpy as np
import pytest

from server.operations.labelling import spans
from server.operations.labelling.spans import best_spans
from server.text.tokens.tokenizer import Encoding


def letter_tokens(context: str, words: list[int | None]) -> Encoding:
    """A question of one token and a context of one token per letter. words: the word index of each letter, or None."""
    size = len(context)
    return Encoding(
        ids=[0, 9, 1, *range(10, 10 + size), 1],
        type_ids=[0] * (size + 4),
        special=[True, False, True, *[False] * size, True],
        offsets=[(0, 0), (0, 1), (0, 0), *((i, i + 1) for i in range(size)), (0, 0)],
        words=[None, 0, None, *words, None],
    )


def test_answers_are_distinct_whole_words_of_at_most_15_tokens() -> None:
    context = "abcdefghijklmnopqrstuvwxyz"
    window = list(range(30))
    logits = np.zeros((30, 2), dtype=np.float32)
    logits[3, 0] = logits[28, 1] = 20.0  # the span from a to z is too long
    logits[4, 0], logits[5, 1] = 8.0, 8.0
    encoding = letter_tokens(context, [i // 2 for i in range(26)])
    found = best_spans(encoding, (3, 29), [(window, logits)], 0, 300)
    assert all(0 < span.end - span.start <= 16 for span in found)
    places = [(span.start, span.end) for span in found]
    assert len(set(places)) == len(places) and all(a % 2 == 0 and b % 2 == 0 for a, b in places)
    assert [span.score for span in found] == sorted((span.score for span in found), reverse=True)
    assert places[0] == (0, 4)  # starts in the word of b and ends in the word of c
    single = letter_tokens(context, [None] * 26)
    assert best_spans(single, (3, 29), [(window, logits)], 0, 1)[0].start == 0


def test_spans_that_are_dropped_on_the_way_change_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    encoding = letter_tokens("a" * 200, [index // 2 for index in range(200)])
    parts = [
        ([0, *range(start, start + 60), 203], generator.normal(0, 3, (62, 2)).astype(np.float32))
        for start in (3, 33, 63, 93, 123, 143)
    ]
    found = best_spans(encoding, (3, 203), parts, 0, 5)
    monkeypatch.setattr(spans, "_KEPT_SPANS", 1000)
    assert found == best_spans(encoding, (3, 203), parts, 0, 5) and len(found) == 5


def test_an_answer_found_in_two_windows_has_the_higher_score() -> None:
    encoding = letter_tokens("abc", [0, 1, 2])
    weak, strong = np.zeros((7, 2), dtype=np.float32), np.zeros((7, 2), dtype=np.float32)
    weak[4] = 3.0
    strong[4] = 6.0
    window = list(range(7))
    (found,) = best_spans(encoding, (3, 6), [(window, weak), (window, strong), (window, weak)], None, 1)
    power = np.exp(6.0)
    assert (found.start, found.end) == (1, 2) and found.score == pytest.approx((power / (power + 2)) ** 2, rel=1e-5)
