"""Splitting texts into sentences."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.text.languages.sentences import split_sentences


def _texts(text: str) -> list[str]:
    return [sentence.text for sentence in split_sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("One.", ["One."]),
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Pi is 3.14 today. Next.", ["Pi is 3.14 today.", "Next."]),
        ("It cost $5. That was in 1990. Then it rose.", ["It cost $5. That was in 1990.", "Then it rose."]),
        ("Am 3. Mai kam er.", ["Am 3. Mai kam er."]),
        ("Dr. Smith met Mr. J. R. Jones. They spoke.", ["Dr. Smith met Mr. J. R. Jones.", "They spoke."]),
        ("Obst, z.B. Äpfel, schmeckt. Ja.", ["Obst, z.B. Äpfel, schmeckt.", "Ja."]),
        ("Wait... what? Well... Yes.", ["Wait... what?", "Well...", "Yes."]),
        ("He said “Go!” and left. “Really?” she asked.", ["He said “Go!” and left.", "“Really?” she asked."]),
        ('"Stop." "Why?" (Because.) End.', ['"Stop."', '"Why?"', "(Because.)", "End."]),
        ("日本語です。次の文！「はい。」終わり", ["日本語です。", "次の文！", "「はい。」", "終わり"]),
        ("यह है। वह है।", ["यह है।", "वह है।"]),
        ("هل هذا؟ نعم.", ["هل هذا؟", "نعم."]),
        ("Title\n\nBody one. Body\ntwo.", ["Title", "Body one.", "Body", "two."]),
        ("Visit example.com today. Or not.", ["Visit example.com today.", "Or not."]),
        ("  Leading. Trailing.  ", ["", "Leading.", "Trailing."]),
        ("¿Qué? ¡Sí! ¿No?", ["¿Qué?", "¡Sí!", "¿No?"]),
        ("Ends with spaces   \n  then more", ["Ends with spaces", "then more"]),
    ],
)
def test_sentences(text: str, expected: list[str]):
    assert _texts(text) == expected


@given(st.text(st.sampled_from("aA1 .!?…\n\t\u3000。！\"')」éß") | st.characters(exclude_categories=["Cs"])))
def test_sentences_join_to_the_original_text(text: str):
    sentences = split_sentences(text)
    assert "".join(sentence.text + sentence.separator for sentence in sentences) == text
    for index, sentence in enumerate(sentences):
        assert sentence.text == sentence.text.strip()
        assert sentence.text or index == 0
        assert not sentence.separator.strip()


@pytest.mark.parametrize("unit", [".", " ", "。", ". ", "\n", " \n", ".'", "A. ", "!?", "a", "　"])
def test_the_time_is_linear_in_the_text(unit: str):
    def seconds(size: int) -> float:
        text = unit * (size // len(unit)) + "x"
        start = time.process_time()
        split_sentences(text)
        return time.process_time() - start

    seconds(1000)
    # The minimum of three, because a garbage collection takes longer than the measured work.
    assert min(seconds(160_000) for _ in range(3)) < 0.05 + 60 * seconds(10_000)
