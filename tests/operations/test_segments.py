"""Segments: nothing of a text is lost, everything fits, and text comes in order."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from server.ipc.params import GenerationParams
from server.operations.generated_text import GeneratedText, TextDelta, TextOptions
from server.operations.segments import Segment, SegmentedText, split, whole
from server.text.load import load_tokenizer
from tests.wire.checkpoints import write_checkpoint

PIECES = st.lists(st.sampled_from(["Word", "a", ". ", "! ", "\n", ", ", " ", "。", "日", "Dr. ", "3. "]), max_size=40)


@given(PIECES.map("".join), st.integers(1, 12))
def test_nothing_is_lost_and_everything_fits(text: str, limit: int) -> None:
    segments = split(text, "ja", lambda piece: len(piece) <= limit)
    assert "".join(segment.text + segment.separator for segment in segments) == text
    assert all(len(segment.text) <= limit for segment in segments)


def test_cuts_fall_on_pauses() -> None:
    segments = split("one two, three four five", "de", lambda piece: len(piece) <= 14)
    assert [(segment.text, segment.separator) for segment in segments] == [
        ("one two,", " "),
        ("three", " "),
        ("four five", ""),
    ]


def test_a_space_between_sentences_that_had_none() -> None:
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


def test_text_comes_in_order_whatever_comes_first(tmp_path) -> None:
    tokenizer = load_tokenizer(write_checkpoint(tmp_path))
    randomness = random.Random(1)
    for _ in range(50):
        segments = split("Ab cd. Ef? Gh! Ij.", "de", lambda _: True)
        job = SegmentedText(0, segments)
        segments[0].prefix = "> "
        for row, segment in enumerate(segments):
            segment.answers = [GeneratedText(tokenizer, GenerationParams(), row, 0, TextOptions())]
        news = [(row, index) for row, segment in enumerate(segments) for index in range(len(segment.text))]
        order = sorted(news, key=lambda item: (randomness.random(),))
        seen = {row: 0 for row, _ in news}
        joined, last = "", 0
        for row, _ in order:
            segment: Segment = segments[row]
            answer = segment.answers[0]
            token = ord(segment.text[seen[row]]) + 3
            seen[row] += 1
            job.hold(row, answer.push([token], None))
            if seen[row] == len(segment.text):
                answer.finish_reason = "stop"
                job.hold(row, TextDelta(answer))
            for piece in job.release():
                assert piece.segment >= last
                last, joined = piece.segment, joined + piece.text
        assert joined == job.text(0) == "> Ab cd. Ef? Gh! Ij."
