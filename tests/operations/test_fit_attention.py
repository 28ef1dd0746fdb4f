"""Attention weights that are too large for a message: answers get shorter, then the last sentences have none."""

from __future__ import annotations

import pytest

from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from server.operations.generating import prompts
from server.operations.translating.marked_segments import fit_attention


def message(*max_new_tokens: int) -> Generate:
    rows = [GenerateRow(index, count, index, [0]) for index, count in enumerate(max_new_tokens)]
    return Generate("m", GenerationParams(attention=True), [[5] * 10 for _ in rows], rows)


def test_a_small_message_stays() -> None:
    own = message(512, 512)
    assert fit_attention(own, True, False) is own


@pytest.mark.parametrize("has_markup", [True, False])
def test_answers_are_bounded_if_the_request_does_not_bound_them(
    monkeypatch: pytest.MonkeyPatch, has_markup: bool
) -> None:
    monkeypatch.setattr(prompts, "MAX_ATTENTION_NUMBERS", 2000)
    found = fit_attention(message(512, 50), True, has_markup)
    assert [(row.max_new_tokens, row.attention) for row in found.rows] == [(92, True), (50, True)]


def test_the_first_sentences_of_plain_text_keep_their_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MAX_ATTENTION_NUMBERS", 1000)
    found = fit_attention(message(50, 50, 1), False, False)
    assert [row.attention for row in found.rows] == [True, True, False]
    assert [row.max_new_tokens for row in found.rows] == [50, 50, 1]
    assert all(row.attention for row in fit_attention(message(50, 60), False, True).rows)
