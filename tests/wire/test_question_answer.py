"""`/question_answer` over a socket.

The fake engine is as sure as nine that an answer begins at `<` or `[` and ends at `>` or `]`, and indifferent else.
Its tokenizer takes a whole text for one word, so an answer is the whole context, unless there is white space.
"""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from server.api.dialects.native.answers import QuestionAnswerAnswer
from server.operations.spans import best_spans
from server.text.tokenizer import Encoding
from tests.wire.test_encode import post, refused


def test_an_answer_is_a_part_of_the_context(client: httpx.Client) -> None:
    context = "x <y> z"
    found = post(client, "/question_answer", question="what < is > it", context=context)
    QuestionAnswerAnswer.model_validate(found)
    (one,) = found
    assert context[one["start"] : one["end"]] == one["answer"] and "<y>" in one["answer"]
    power = np.exp(9.0)
    assert one["score"] == pytest.approx((power / (power + 6)) ** 2, rel=1e-5)


def test_a_long_context_is_read_in_windows(client: httpx.Client) -> None:
    context = "é" + "o" * 900 + "<ooo>" + "o" * 900
    (found,) = post(client, "/question_answer", question="where", context=context)
    assert "<ooo>" in found["answer"] and found["answer"] == context[found["start"] : found["end"]]
    assert found["score"] > 0.9


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("question", {"context": "a"}),
        ("question", {"question": "", "context": "a"}),
        ("question", {"question": ["a"], "context": "a"}),
        ("context", {"question": "a"}),
        ("context", {"question": "a", "context": ""}),
        ("top_k", {"question": "a", "context": "b", "top_k": 0}),
        ("top_k", {"question": "a", "context": "b", "top_k": 257}),
        ("model", {"question": "a", "context": "b", "model": "tagger"}),
    ],
)
def test_question_answer_refuses(client: httpx.Client, param: str, body: dict) -> None:
    refused(client, "/question_answer", param, **body)


def test_a_question_has_to_leave_room(client: httpx.Client) -> None:
    code = "context_length_exceeded"
    refused(client, "/question_answer", "question", code, question="q" * 382, context="a")
    assert len(post(client, "/question_answer", question="q" * 381, context="a")) == 1


def letters(context: str, words: list[int | None]) -> Encoding:
    """A question of one token, and a context of a token for each letter, between special tokens."""
    size = len(context)
    return Encoding(
        ids=[0, 9, 1, *range(10, 10 + size), 1],
        type_ids=[0] * (size + 4),
        special=[True, False, True, *[False] * size, True],
        offsets=[(0, 0), (0, 1), (0, 0), *((i, i + 1) for i in range(size)), (0, 0)],
        tokens=[""] * (size + 4),
        words=[None, 0, None, *words, None],
    )


def test_answers_are_whole_words_each_once_and_not_too_long() -> None:
    context = "abcdefghijklmnopqrstuvwxyz"
    whole = list(range(30))
    logits = np.zeros((30, 2), dtype=np.float32)
    logits[3, 0] = logits[28, 1] = 20.0  # from a to z is too long for an answer
    logits[4, 0], logits[5, 1] = 8.0, 8.0
    encoding = letters(context, [i // 2 for i in range(26)])
    found = best_spans(encoding, (3, 29), [(whole, logits)], 0, 300)
    assert all(0 < span.end - span.start <= 16 for span in found)
    places = [(span.start, span.end) for span in found]
    assert len(set(places)) == len(places) and all(a % 2 == 0 and b % 2 == 0 for a, b in places)
    assert [span.score for span in found] == sorted((span.score for span in found), reverse=True)
    assert places[0] == (0, 4)  # the beginning at b and the end at c, as words
    single = letters(context, [None] * 26)
    assert best_spans(single, (3, 29), [(whole, logits)], 0, 1)[0].start == 0


def test_one_place_in_two_windows_is_one_answer_with_its_better_score() -> None:
    encoding = letters("abc", [0, 1, 2])
    weak, strong = np.zeros((7, 2), dtype=np.float32), np.zeros((7, 2), dtype=np.float32)
    weak[4] = 3.0
    strong[4] = 6.0
    whole = list(range(7))
    (found,) = best_spans(encoding, (3, 6), [(whole, weak), (whole, strong), (whole, weak)], None, 1)
    power = np.exp(6.0)
    assert (found.start, found.end) == (1, 2) and found.score == pytest.approx((power / (power + 2)) ** 2, rel=1e-5)
