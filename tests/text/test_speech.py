"""Speech: windows are divided into segments as in transformers, and a checkpoint's special tokens are checked."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from server.text.speech.speech import SpeechTokens, split_whole_window, split_window
from server.text.tokenizers.load import load_tokenizer
from server.text.tokens.tokenizer import TokenizerError
from tests.parity import speech
from tests.parity.speech import (
    END,
    FIRST_TIME,
    LANGUAGES,
    NO_TIMESTAMPS,
    START,
    START_OF_PREVIOUS,
    TRANSCRIBE,
    TRANSLATE,
)

FIRST = 100


def reference_segments(tokens: list[int], first_frame: int, num_frames: int):
    segments, step = WhisperGenerationMixin._retrieve_segment(
        seek_sequence=torch.tensor(tokens, dtype=torch.int64),
        seek_outputs=[None],
        time_offset=torch.tensor([first_frame * 0.02 / 2], dtype=torch.float64),
        timestamp_begin=FIRST,
        seek_num_frames=torch.tensor([num_frames]),
        time_precision=0.02,
        time_precision_features=0.01,
        input_stride=2,
        prev_idx=0,
        idx=0,
        return_token_timestamps=False,
        decoder_input_ids=torch.zeros(1, 3),
    )
    return [(float(segment["start"]), float(segment["end"]), segment["tokens"].tolist()) for segment in segments], int(
        step
    )


def random_tokens(chooser: random.Random) -> list[int]:
    """Random text tokens and timestamps that follow the rules of timestamps. They may end anywhere."""
    tokens, time = [FIRST + chooser.randint(0, 3)], 4
    while len(tokens) < 40 and chooser.random() > 0.1:
        tokens += [chooser.randint(0, 90) for _ in range(chooser.randint(1, 4))]
        if chooser.random() < 0.8:
            time += chooser.randint(1, 9)
            tokens.append(FIRST + time)
            if chooser.random() < 0.7:
                tokens.append(FIRST + time + chooser.randint(0, 2))
    return tokens[: chooser.randint(0, len(tokens))]


def test_segments_equal_transformers() -> None:
    chooser = random.Random(4)
    shapes = set()
    for _ in range(2000):
        tokens, first_frame = random_tokens(chooser), chooser.randint(0, 5000)
        num_frames = chooser.choice([3000, 100, 37, 2])
        segments, step = split_window(tokens, FIRST, first_frame, num_frames)
        expected, expected_step = reference_segments(tokens, first_frame, num_frames)
        assert [segment.tokens for segment in segments] == [entry[2] for entry in expected], tokens
        assert step == expected_step, tokens
        for segment, (start, end, _) in zip(segments, expected, strict=True):
            assert segment.start == pytest.approx(start, abs=1e-9)
            # Without a timestamp, transformers rounds the length of an odd window down to a whole token.
            assert segment.end == pytest.approx(end, abs=0.0201)
        shapes.add((min(len(segments), 3), step == num_frames))
    assert len(shapes) >= 4


def test_every_window_makes_progress() -> None:
    """The next window starts later even after equal timestamps, which the rules of timestamps do not allow."""
    _, step = split_window([FIRST, FIRST, 5], FIRST, 0, 3000)
    assert step == 2


def test_a_window_that_nothing_continues_keeps_its_text_within_its_times() -> None:
    chooser = random.Random(6)
    beyond = 0
    for _ in range(2000):
        tokens, first_frame = random_tokens(chooser), 2 * chooser.randint(0, 2500)
        num_frames = chooser.choice([3000, 100, 38, 2])
        start, end = first_frame / 100, (first_frame + num_frames) / 100
        segments = split_whole_window(tokens, FIRST, first_frame, num_frames)
        kept = [token for segment in segments for token in segment.tokens if token < FIRST]
        assert kept == [token for token in tokens if token < FIRST]
        times = [time for segment in segments for time in (segment.start, segment.end)]
        assert all(start - 1e-9 <= time <= end + 1e-9 for time in times), tokens
        beyond += any(token - FIRST > num_frames / 2 for token in tokens if token >= FIRST)
    assert beyond > 100


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    speech.write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(speech.GENERATION))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "whisper", "vocab_size": FIRST_TIME + 51}))
    return tmp_path


def read(directory: Path) -> SpeechTokens:
    return SpeechTokens.from_checkpoint(directory, load_tokenizer(directory))


def change(directory: Path, **values: object) -> None:
    path = directory / "generation_config.json"
    merged = json.loads(path.read_text()) | values
    path.write_text(json.dumps({name: value for name, value in merged.items() if value is not None}))


def test_tokens_of_the_generation_config(directory: Path) -> None:
    tokens = read(directory)
    assert tokens.start == START and tokens.first_timestamp == FIRST_TIME and tokens.max_initial == 25
    assert tokens.languages == {"en": LANGUAGES["<|en|>"], "de": LANGUAGES["<|de|>"], "fr": LANGUAGES["<|fr|>"]}
    assert tokens.prefix("de", "transcribe", False) == [START, LANGUAGES["<|de|>"], TRANSCRIBE, NO_TIMESTAMPS]
    assert tokens.prefix("fr", "translate", True, [7]) == [START_OF_PREVIOUS, 7, START, LANGUAGES["<|fr|>"], TRANSLATE]


def test_missing_tokens_are_found_in_the_vocabulary(directory: Path) -> None:
    expected = read(directory)
    change(directory, lang_to_id=None, task_to_id=None, no_timestamps_token_id=None, prev_sot_token_id=None)
    assert read(directory) == expected


def test_the_prompt_of_an_english_only_model_has_no_language_or_task(directory: Path) -> None:
    change(directory, is_multilingual=None)
    tokens = read(directory)
    assert tokens.languages == {} and not tokens.translates
    assert tokens.prefix(None, "transcribe", True) == [START]
    assert tokens.language("English") == "en" and tokens.language("de") is None


@pytest.mark.parametrize(
    ("name", "code"),
    [("de", "de"), ("DE", "de"), ("German", "de"), ("deu", "de"), ("de-AT", "de"), ("es", None), ("klingon", None)],
)
def test_languages_by_code_and_name(directory: Path, name: str, code: str | None) -> None:
    assert read(directory).language(name) == code


@pytest.mark.parametrize(
    "wrong",
    [
        {"no_timestamps_token_id": 10_000},
        {"no_timestamps_token_id": "5"},
        {"prev_sot_token_id": -1},
        {"lang_to_id": {"<|en|>": 9999}},
        {"lang_to_id": {"english": END}},
        {"lang_to_id": {}},
        {"task_to_id": {"transcribe": TRANSCRIBE}},
        {"max_initial_timestamp_index": "50"},
    ],
    ids=str,
)
def test_errors_for_wrong_tokens_name_the_field(directory: Path, wrong: dict) -> None:
    change(directory, **wrong)
    with pytest.raises(TokenizerError, match=next(iter(wrong))):
        read(directory)
