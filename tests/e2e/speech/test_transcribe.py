"""Recordings over HTTP: text, times and language equal those of transformers for the same files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.whisper.tokenization_whisper import _collate_word_timestamps

from server.audio.silence import cut_at_silences
from tests.e2e.speech.oracle import Oracle
from tests.e2e.speech.recordings import LONG, every_shape, send, transcript
from tests.parity.speech import END, START_OF_PREVIOUS, recording


class WordAdapter:
    """Adapts the tokenizer of the checkpoint to transformers' function that joins tokens to words."""

    language, eos_token_id = None, END

    def __init__(self, tokenizer) -> None:
        self.tokenizer = tokenizer

    def decode(self, token_ids, decode_with_timestamps: bool = False) -> str:
        return self.tokenizer.decode(token_ids)


def assert_same(ours: dict, theirs: list[dict], oracle: Oracle, seconds: float) -> None:
    """Assert that an answer has the segments of transformers, except segments without words.

    ours: JSON answer of the server. theirs: segments of transformers. seconds: length of the recording.
    """
    spoken = [segment for segment in theirs if oracle.words(segment["tokens"].tolist()).strip()]
    assert [segment["tokens"] for segment in ours["segments"]] == [segment["tokens"].tolist() for segment in spoken]
    for mine, other in zip(ours["segments"], spoken, strict=True):
        assert mine["text"] == oracle.words(other["tokens"].tolist())
        assert mine["start"] == pytest.approx(min(float(other["start"]), seconds), abs=1e-3)
        assert mine["end"] == pytest.approx(min(float(other["end"]), seconds), abs=0.0211)
    assert ours["text"] == oracle.words([token for segment in theirs for token in segment["tokens"].tolist()]).strip()


@every_shape
@pytest.mark.parametrize("seed", LONG)
def test_a_recording_of_several_windows(server, oracles, shape: str, seed: int) -> None:
    ours = transcript(server, LONG[seed], model=shape, language="de")
    theirs = oracles[shape].segments(LONG[seed], language="de")
    assert_same(ours, theirs, oracles[shape], len(LONG[seed]) / 16_000)
    assert len(theirs) > 3 and len({segment["seek"] for segment in ours["segments"]}) > 2
    assert (ours["task"], ours["language"]) == ("transcribe", "german")
    assert all(segment["avg_logprob"] < 0 for segment in ours["segments"])


@every_shape
def test_with_four_beams(server, oracles, shape: str) -> None:
    ours = transcript(server, LONG[1], model=shape, language="fr", num_beams=4)
    assert_same(ours, oracles[shape].segments(LONG[1], language="fr", num_beams=4), oracles[shape], 3.67)


@every_shape
def test_the_language_is_detected(server, oracles, shape: str) -> None:
    ours = transcript(server, LONG[2], model=shape)
    oracle = oracles[shape]
    language = oracle.model.detect_language(oracle.frames(LONG[2]), num_segment_frames=oracle.window)
    name = {"<|en|>": "english", "<|de|>": "german", "<|fr|>": "french"}[oracle.tokenizer.decode(language)]
    assert ours["language"] == name
    assert_same(ours, oracle.segments(LONG[2]), oracle, len(LONG[2]) / 16_000)


@every_shape
def test_a_short_recording_without_times(server, oracles, shape: str) -> None:
    oracle, short = oracles[shape], recording(0.55, seed=3)
    with torch.inference_mode():
        tokens = oracle.model.generate(oracle.frames(short), language="en", task="transcribe")[0].tolist()
    answer = send(server, short, model=shape, language="en").json()
    assert answer == {"text": oracle.words(tokens).strip(), "usage": {"type": "duration", "seconds": 1}}
    assert send(server, short, model=shape, language="en", response_format="text").text == answer["text"] + "\n"


@every_shape
def test_a_prompt_changes_the_text_as_in_transformers(server, oracles, shape: str) -> None:
    oracle = oracles[shape]
    said = oracle.tokenizer(" The garden", add_special_tokens=False).input_ids
    theirs = oracle.segments(LONG[0], language="en", prompt_ids=torch.tensor([START_OF_PREVIOUS, *said]))
    ours = transcript(server, LONG[0], model=shape, language="en", prompt="The garden ")
    assert_same(ours, theirs, oracle, len(LONG[0]) / 16_000)
    assert ours["text"] != transcript(server, LONG[0], model=shape, language="en")["text"]


def test_translation_equals_the_translate_task(server, oracles) -> None:
    oracle = oracles["whisper"]
    ours = transcript(server, LONG[3], "/v1/audio/translations", model="whisper")
    assert_same(ours, oracle.segments(LONG[3], task="translate"), oracle, len(LONG[3]) / 16_000)
    assert (ours["task"], ours["language"]) == ("translate", "english")


def test_a_model_for_english_only(server) -> None:
    ours = transcript(server, LONG[0], model="english")
    assert ours["language"] == "english" and ours["segments"]
    assert transcript(server, LONG[0], model="english", language="en")["segments"] == ours["segments"]
    assert send(server, LONG[0], "/v1/audio/translations", model="english").status_code == 400
    assert send(server, LONG[0], model="english", language="de").json()["error"]["param"] == "language"


@pytest.mark.parametrize(
    ("shape", "said", "seed"),
    [
        ("whisper", "", 0),
        ("whisper", "The garden ", 2),
        ("whisper-wide-ear", "", 2),
        ("whisper-wide-ear", "The garden ", 0),
    ],
)
def test_the_text_so_far_precedes_each_window_as_in_transformers(server, oracles, shape: str, said: str, seed) -> None:
    oracle, settings = oracles[shape], {"condition_on_prev_tokens": True}
    if said:
        ids = oracle.tokenizer(" " + said.strip(), add_special_tokens=False).input_ids
        settings["prompt_ids"] = torch.tensor([START_OF_PREVIOUS, *ids])
    theirs = oracle.segments(LONG[seed], language="en", temperature=0.0, **settings)
    fields = {"model": shape, "language": "en"} | ({"prompt": said} if said else {})
    ours = transcript(server, LONG[seed], condition_on_previous_text="true", **fields)
    assert_same(ours, theirs, oracle, len(LONG[seed]) / 16_000)
    assert ours["text"] != transcript(server, LONG[seed], **fields)["text"]


@every_shape
def test_windows_without_speech_are_left_out_as_in_transformers(server, oracles, shape: str) -> None:
    """Windows below the thresholds of speech are left out, exactly those that transformers leaves out.

    The thresholds are chosen from the server's own values, so that some windows are left out and others are not.
    """
    fields = {"model": shape, "language": "en"}
    segments = transcript(server, LONG[3], **fields)["segments"]
    logprob = max(segment["avg_logprob"] for segment in segments) + 1e-3
    no_speech = float(np.median([segment["no_speech_prob"] for segment in segments]))
    theirs = oracles[shape].segments(
        LONG[3], language="en", temperature=(0.0,), logprob_threshold=logprob, no_speech_threshold=no_speech
    )
    ours = transcript(server, LONG[3], logprob_threshold=str(logprob), no_speech_threshold=str(no_speech), **fields)
    assert_same(ours, theirs, oracles[shape], len(LONG[3]) / 16_000)
    assert ours["segments"] and len(ours["segments"]) < len(segments)


@pytest.mark.parametrize(("shape", "seed"), [("whisper", 3), ("whisper-wide-ear", 0)])
def test_times_of_words_equal_transformers(server, oracles, shape: str, seed: int) -> None:
    oracle, seconds = oracles[shape], len(LONG[seed]) / 16_000
    granularities = {"timestamp_granularities[]": ["word", "segment"]}
    ours = transcript(server, LONG[seed], model=shape, language="en", **granularities)
    attended = torch.ones(1, -(-len(LONG[seed]) // 160), dtype=torch.long)
    theirs = oracle.segments(LONG[seed], language="en", return_token_timestamps=True, attention_mask=attended)
    assert_same(ours, theirs, oracle, seconds)
    words = []
    for segment in theirs:
        places = [at for at, token in enumerate(segment["tokens"].tolist()) if token < END]
        ids, times = segment["tokens"][places].tolist(), segment["token_timestamps"].tolist()
        if not oracle.words(ids).strip():
            continue
        pairs = [(round(times[at - 1], 2), round(times[at], 2)) for at in places]
        found = _collate_word_timestamps(WordAdapter(oracle.tokenizer), ids, pairs, "english", False)
        words += [(word["text"].strip(), *word["timestamp"]) for word in found if word["text"].strip()]
    assert [word["word"] for word in ours["words"]] == [word for word, _, _ in words]
    for mine, (_, start, end) in zip(ours["words"], words, strict=True):
        assert mine["start"] == pytest.approx(min(max(start, 0.0), seconds), abs=1e-3)
        assert mine["end"] == pytest.approx(min(max(end, 0.0), seconds), abs=1e-3)
    assert len({word["end"] for word in ours["words"]}) > 3
    only = transcript(server, LONG[seed], model=shape, language="en", **{"timestamp_granularities[]": "word"})
    assert only["words"] == ours["words"] and "segments" not in only


@every_shape
def test_the_batched_mode_decodes_each_window_as_transformers_does(server, oracles, shape: str) -> None:
    oracle, samples = oracles[shape], LONG[3]
    batched = {"model": shape, "language": "en", "chunking_strategy": "auto", "vad_filter": "false"}
    ours = transcript(server, samples, **batched)
    frames = oracle.frames(samples)
    count = -(-len(samples) // 160)
    spans = cut_at_silences(frames[0].T.numpy(), count, oracle.window)
    assert len(spans) > 3
    expected = []
    for start, end in spans:
        source = torch.nn.functional.pad(frames[..., start:end], (0, oracle.window - (end - start)))
        with torch.inference_mode():
            tokens = oracle.model.generate(
                source, language="en", task="transcribe", return_timestamps=True, force_unique_generate_call=True
            )[0].tolist()
        expected.append([token for token in tokens if token < END])
    found: dict[int, list[int]] = {}
    for segment in ours["segments"]:
        found.setdefault(segment["seek"], []).extend(token for token in segment["tokens"] if token < END)
    assert [found.get(start, []) for start, _ in spans] == [
        ids if oracle.words(ids).strip() else [] for ids in expected
    ]
    assert all(segment["start"] <= segment["end"] <= ours["duration"] + 1e-3 for segment in ours["segments"])
    prompted = transcript(server, samples, **batched, prompt="The garden")
    assert prompted["text"] != ours["text"]
    words = transcript(server, samples, **batched, **{"timestamp_granularities[]": "word"})
    assert words["text"] == ours["text"] and words["words"][-1]["end"] <= ours["duration"]
