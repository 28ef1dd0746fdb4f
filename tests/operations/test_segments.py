"""Splitting a text into segments: no text is lost, every segment fits, and translations are released in order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.ipc.wire.params import GenerationParams
from server.operations.generating.generated_text import GeneratedText, TextDelta, TextOptions
from server.operations.translating.segments import Segment, SegmentedText, split, whole
from server.text.tokenizers.load import load_tokenizer
from tests.wire.checkpoints import write_checkpoint

PIECES = st.lists(st.sampled_from(["Word", "a", ". ", "! ", "\n", ", ", " ", "。", "日", "Dr. ", "3. "]), max_size=40)


@given(PIECES.map("".join), st.integers(1, 12))
def test_segments_join_to_the_text_and_each_fits(text: str, limit: int) -> None:
    segments = split(text, "ja", lambda piece: len(piece) <= limit)
    assert "".join(segment.text + segment.separator for segment in segments) == text
    assert all(len(segment.text) <= limit for segment in segments)


def test_long_sentences_are_cut_at_pauses() -> None:
    segments = split("one two, three four five", "de", lambda piece: len(piece) <= 14)
    assert [(segment.text, segment.separator) for segment in segments] == [
        ("one two,", " "),
        ("three", " "),
        ("four five", ""),
    ]


def test_sentences_without_a_space_get_one_if_the_target_language_uses_spaces() -> None:
    text = "日本語。これは文。"
    assert [segment.separator for segment in split(text, "en", lambda _: True)] == [" ", ""]
    for target in (
        "zh_CN",
        "zho_Hant",
        "cmn",
        "ja",
        "jpn_Jpan",
        "tha_Thai",
        "lao_Laoo",
        "khm_Khmr",
        "mya_Mymr",
        "yue_Hant",
    ):
        assert [segment.separator for segment in split(text, target, lambda _: True)] == ["", ""], target
    assert [segment.separator for segment in split(text, None, lambda _: True)] == [" ", ""]
    assert whole("  ")[0].text == ""


def test_wrapped_lines_are_joined() -> None:
    text = "One two\nthree. Four\r\n  five.\n\nSix\nseven."
    joined = [
        (segment.text, segment.separator)
        for segment in split(text, "de", lambda _: True, at_newlines=False, source="en")
    ]
    assert joined == [("One two three.", " "), ("Four five.", "\n\n"), ("Six seven.", "")]
    unspaced = split("これは\n文です。\n次の\n文。", "ja", lambda _: True, at_newlines=False, source="ja")
    assert [(segment.text, segment.separator) for segment in unspaced] == [("これは文です。", "\n"), ("次の文。", "")]


def test_abbreviations_are_those_of_the_source_language() -> None:
    text = "Er kauft u. a. Äpfel. Ja."
    assert [segment.text for segment in split(text, "en", lambda _: True, source="deu_Latn")] == [
        "Er kauft u. a. Äpfel.",
        "Ja.",
    ]


def test_text_is_released_in_order_for_any_order_of_arrival(tmp_path) -> None:
    tokenizer = load_tokenizer(write_checkpoint(tmp_path))
    randomness = random.Random(1)
    for _ in range(50):
        segments = split("Ab cd. Ef? Gh! Ij.", "de", lambda _: True)
        joined_text = SegmentedText(0, segments)
        segments[0].prefix = "> "
        for row, segment in enumerate(segments):
            segment.answers = [GeneratedText(tokenizer, GenerationParams(), row, 0, TextOptions())]
        arrivals = [(row, index) for row, segment in enumerate(segments) for index in range(len(segment.text))]
        order = sorted(arrivals, key=lambda item: (randomness.random(),))
        seen = {row: 0 for row, _ in arrivals}
        joined, last = "", 0
        for row, _ in order:
            segment: Segment = segments[row]
            answer = segment.answers[0]
            token = ord(segment.text[seen[row]]) + 3
            seen[row] += 1
            joined_text.hold(row, answer.push([token], None))
            if seen[row] == len(segment.text):
                answer.finish_reason = "stop"
                joined_text.hold(row, TextDelta(answer))
            for piece in joined_text.release():
                assert piece.segment >= last
                last, joined = piece.segment, joined + piece.text
        assert joined == joined_text.text(0) == "> Ab cd. Ef? Gh! Ij."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- The dog.\n- The cat.", ["", "The dog.", "", "The cat."]),
        ("  * The dog", ["", "", "The dog"]),
        ("1. The dog.\n2. The cat.", ["", "The dog.", "", "The cat."]),
        ("3. Mai ist Montag.", ["3. Mai ist Montag."]),
        ("a) The dog\n(2) The cat", ["", "The dog", "", "The cat"]),
        ("> - [x] The dog. The cat.", ["", "The dog.", "The cat."]),
        ("## The dog", ["", "The dog"]),
        ("The dog - a cat.", ["The dog - a cat."]),
        ("The dog. - The cat.", ["The dog.", "", "The cat."]),
        ("The dog! – The cat? — A mouse.", ["The dog!", "", "The cat?", "", "A mouse."]),
        ("The dog. * The cat. · A mouse.", ["The dog.", "", "The cat.", "", "A mouse."]),
        ("The dog. • The cat. -- A mouse.", ["The dog.", "", "The cat.", "", "A mouse."]),
        ("The dog.\u00a0* * * The cat.", ["The dog.", "", "The cat."]),
        ("- The dog. - The cat.\n- A mouse.", ["", "The dog.", "", "The cat.", "", "A mouse."]),
        ("—¡Hola! —Adiós.", ["", "¡Hola!", "", "Adiós."]),
        ("— Tak. — powiedział.", ["", "Tak. — powiedział."]),
        ("The dog. -5 is cold. The end. -", ["The dog.", "-5 is cold.", "The end."]),
        ("1. The dog. 2. The cat.", ["", "The dog.", "", "The cat."]),
        ("(a) The dog. (b) The cat.", ["", "The dog.", "", "The cat."]),
        ("The dog. (1) The cat.", ["The dog.", "(1) The cat."]),
        ("[x] The dog. [ ] The cat.", ["", "The dog.", "", "The cat."]),
        ("・犬\n・猫。", ["", "犬", "", "猫。"]),
        ("彼は来た。——彼女は去った。", ["彼は来た。", "", "彼女は去った。"]),
        ("-5 dogs", ["-5 dogs"]),
    ],
)
def test_markers_of_lists_and_headings_are_not_translated(text: str, expected: list[str]) -> None:
    found = split(text, "ja" if text.endswith("。") else "fr", bool)
    assert [part.text for part in found] == expected
    assert "".join(part.text + part.separator for part in found) == text
