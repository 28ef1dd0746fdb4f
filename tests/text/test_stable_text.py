"""Stable text while a person speaks: words on which two transcriptions agree. No word is taken back later."""

from __future__ import annotations

import random

import pytest

from server.text.speech.stable_text import StableText, is_spaced


def grown(hypotheses: list[str], final: str) -> tuple[list[str], StableText]:
    text = StableText()
    return [*(text.add(hypothesis) for hypothesis in hypotheses), text.finish(final)], text


def test_words_are_stable_when_two_hypotheses_agree() -> None:
    text = StableText()
    assert text.add("The garden") == "" and text.rest == "The garden"
    assert text.add("The garden is") == "The garden" and (text.text, text.rest) == ("The garden", " is")
    assert text.add("The garden is small") == " is" and text.rest == " small"
    assert text.finish("The garden is small.") == " small."
    assert text.text == "The garden is small." and text.rest == ""


def test_a_word_that_changes_waits() -> None:
    added, _ = grown(["I see", "Icy roads", "Icy roads are"], "Icy roads are dangerous.")
    assert added == ["", "", "Icy roads", " are dangerous."]


@pytest.mark.parametrize(
    ("final", "expected"),
    [
        ("the cat sat on the mat", "The cat sat on the mat"),  # other case
        ("A cat sat on the mat", "The cat sat on the mat"),  # another first word
        ("cat sat on the mat", "The cat sat on the mat"),  # a word less
        ("Oh the cat sat on the mat", "The cat sat on the mat"),  # a word more
        ("The cat", "The cat sat"),  # shorter than what is stable
        ("", "The cat sat"),
    ],
)
def test_stable_words_stay_when_a_later_hypothesis_has_others(final: str, expected: str) -> None:
    text = StableText()
    text.add("The cat sat on")
    assert text.add("The cat sat in") == "The cat sat"
    text.finish(final)
    assert text.text == expected


def test_characters_without_spaces_are_words() -> None:
    added, text = grown(["今天天", "今天天气很", "今天天气很好"], "今天天气很好。")
    assert added == ["", "今天天", "气很", "好。"] and text.text == "今天天气很好。"


def test_growth_is_the_text_whatever_the_hypotheses_are() -> None:
    generator = random.Random(0)
    words = ["a", "b", "c.", "D", "気", " "]
    for _ in range(300):
        hypotheses = ["".join(generator.choices(words, k=generator.randrange(12))) for _ in range(6)]
        added, text = grown(hypotheses[:-1], hypotheses[-1])
        assert "".join(added).strip() == text.text and not text.rest


def test_an_hour_of_one_turn_takes_little_time_for_each_hypothesis() -> None:
    """The work does not grow with the turn, because only the last stable words are searched for in a new hypothesis."""
    text, words = StableText(), [f"w{number}" for number in range(2_000)]
    text.add(" ".join(words))
    text.add(" ".join(words))
    changed = ["x", *words[1:], "end"]
    assert text.finish(" ".join(changed)) == " end"


def test_a_space_between_texts() -> None:
    assert is_spaced("one.", "two") and not is_spaced("", "two") and not is_spaced("one", " two")
    assert not is_spaced("一。", "二") and not is_spaced("one", ", two")
