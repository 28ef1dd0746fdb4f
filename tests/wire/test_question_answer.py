"""/question_answer over a socket.

The fake worker's start logit is 9 at `<` and `[`, its end logit is 9 at `>` and `]`, and all other logits are 0. Its
tokenizer treats a text as one word, and answers consist of whole words, so every answer is the whole context.
"""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from server.api.dialects.native.answers import QuestionAnswerAnswer
from tests.wire.test_encode import post, refused


def test_an_answer_is_a_part_of_the_context(client: httpx.Client) -> None:
    context = "x <y> z"
    found = post(client, "/question_answer", question="what < is > it", context=context)
    QuestionAnswerAnswer.model_validate(found)
    (one,) = found
    assert context[one["start"] : one["end"]] == one["answer"] and "<y>" in one["answer"]
    power = np.exp(9.0)
    assert one["score"] == pytest.approx((power / (power + 6)) ** 2, rel=1e-5)


def test_a_long_context_is_split_into_windows(client: httpx.Client) -> None:
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
def test_question_answer_refuses_invalid_fields(client: httpx.Client, param: str, body: dict) -> None:
    refused(client, "/question_answer", param, **body)


def test_a_question_must_leave_room_for_the_context(client: httpx.Client) -> None:
    code = "context_length_exceeded"
    refused(client, "/question_answer", "question", code, question="q" * 382, context="a")
    assert len(post(client, "/question_answer", question="q" * 381, context="a")) == 1
