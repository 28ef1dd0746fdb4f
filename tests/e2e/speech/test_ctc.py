"""Models with a CTC head over HTTP: text and word times equal those of transformers for the same files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers

from server.audio.frames import HOP_SAMPLES
from server.audio.silence import cut_at_silences, loudness_frames
from tests.audio.wavs import wav
from tests.e2e.conftest import REPOSITORY, RunningServer, serving
from tests.e2e.speech.recordings import ROUTE, send, transcript
from tests.parity.ctc import write
from tests.parity.speech import recording

SHAPES = ("wav2vec2-base", "hubert-large", "wav2vec2-short", "wavlm-large")
every_shape = pytest.mark.parametrize("shape", SHAPES)
SHORT, LONG = recording(3.3, seed=1), recording(37.0, seed=2)


class Oracle:
    """A model of transformers with its feature extractor and tokenizer."""

    def __init__(self, directory: Path, model: Any) -> None:
        self.model = model
        self.features = transformers.Wav2Vec2FeatureExtractor.from_pretrained(directory)
        self.tokenizer = transformers.Wav2Vec2CTCTokenizer.from_pretrained(directory)

    def labels(self, samples: np.ndarray) -> torch.Tensor:
        inputs = self.features(samples, sampling_rate=16_000, return_tensors="pt").input_values
        with torch.inference_mode():
            return self.model(inputs).logits[0].log_softmax(-1)

    def words(self, samples: np.ndarray) -> tuple[str, list[tuple[str, float, float]]]:
        """The text, and each word with its start and end in seconds."""
        found = self.tokenizer.decode(self.labels(samples).argmax(-1), output_word_offsets=True)
        ratio = self.model.config.inputs_to_logits_ratio / 16_000
        words = [
            (word["word"], word["start_offset"] * ratio, word["end_offset"] * ratio) for word in found.word_offsets
        ]
        return found.text, [(text, start, end) for text, start, end in words if text.strip()]


@pytest.fixture(scope="module")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Oracle]]:
    found = {}
    for shape in SHAPES:
        directory = tmp_path_factory.mktemp(shape)
        model = write(directory, shape)
        found[shape] = directory, Oracle(directory, model)
    return found


@pytest.fixture(scope="module")
def server(oracles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = [f"{shape}={directory}" for shape, (directory, _) in oracles.items()]
    models.append(f"story={REPOSITORY / 'weights' / 'demo' / 'story'}")
    with serving(tmp_path_factory.mktemp("server") / "log", *models, "--threads", "1") as running:
        yield running


def plain(text: str) -> str:
    """Collapse spaces. transformers writes several spaces if several delimiters follow each other."""
    return " ".join(text.split())


@every_shape
def test_the_text_and_the_times_of_words(server, oracles, shape: str) -> None:
    oracle = oracles[shape][1]
    text, words = oracle.words(SHORT)
    answer = transcript(server, SHORT, model=shape, **{"timestamp_granularities[]": ["word", "segment"]})
    assert answer["text"] == plain(text) and len(words) > 3
    assert [word["word"] for word in answer["words"]] == [word for word, _, _ in words]
    for mine, (_, start, end) in zip(answer["words"], words, strict=True):
        assert (mine["start"], mine["end"]) == (pytest.approx(start, abs=1e-3), pytest.approx(end, abs=1e-3))
    assert (answer["task"], answer["language"], answer["duration"]) == ("transcribe", "und", 3.3)
    segments = answer["segments"]
    assert "".join(segment["text"] for segment in segments).strip() == answer["text"]
    assert segments[0]["avg_logprob"] == pytest.approx(float(oracle.labels(SHORT).max(-1).values.mean()), abs=1e-4)
    assert all(one["end"] <= other["start"] for one, other in pairwise(segments))
    assert all(segment["end"] - segment["start"] <= 8 for segment in segments)


@every_shape
def test_json_text_and_subtitles(server, oracles, shape: str) -> None:
    text = plain(oracles[shape][1].words(SHORT)[0])
    assert send(server, SHORT, model=shape).json() == {"text": text, "usage": {"type": "duration", "seconds": 4}}
    assert send(server, SHORT, model=shape, response_format="text").text == text + "\n"
    assert send(server, SHORT, model=shape, response_format="srt").text.startswith("1\n00:00:0")
    assert send(server, SHORT, model=shape, response_format="vtt").text.startswith("WEBVTT\n\n00:00:0")


def test_a_long_recording_is_cut_at_pauses(server, oracles) -> None:
    """Each window has the same words as in transformers. A streamed answer has the same text."""
    frames = loudness_frames(LONG)
    spans = cut_at_silences(frames, len(frames), 3000)
    assert len(spans) == 2 and 1500 <= spans[0][1] <= 3000
    oracle = oracles["wav2vec2-base"][1]
    parts = [oracle.words(LONG[start * HOP_SAMPLES : end * HOP_SAMPLES]) for start, end in spans]
    answer = transcript(server, LONG, model="wav2vec2-base", **{"timestamp_granularities[]": ["word"]})
    assert answer["text"] == " ".join(plain(text) for text, _ in parts)
    offset = spans[1][0] / 100
    words = [*parts[0][1], *((word, start + offset, end + offset) for word, start, end in parts[1][1])]
    assert [(word["word"], word["start"]) for word in answer["words"]] == [
        (word, pytest.approx(start, abs=1e-3)) for word, start, _ in words
    ]
    assert transcript(server, LONG, model="wav2vec2-base", chunking_strategy="auto")["text"] == answer["text"]
    streamed = send(server, LONG, model="wav2vec2-base", stream="true")
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert "".join(event["delta"] for event in events[:-1]) == answer["text"] == events[-1]["text"]
    assert len(events) == 3


@pytest.mark.parametrize("samples", [1, 399, 400, 719, 16_000])
def test_recordings_of_boundary_lengths(server, oracles, samples: int) -> None:
    answer = transcript(server, LONG[:samples], model="wav2vec2-base")
    expected = plain(oracles["wav2vec2-base"][1].words(LONG[:samples])[0]) if samples >= 400 else ""
    assert answer["text"] == expected and answer["duration"] == round(samples / 16_000, 3)


def test_silence_is_no_error(server) -> None:
    assert send(server, np.zeros(16_000, np.float32), model="wav2vec2-base").status_code == 200


def test_fields_of_the_dialect_that_the_head_cannot_grant_are_dropped_and_named(server) -> None:
    plain_answer = send(server, SHORT, model="wav2vec2-base")
    assert "x-ignored-parameters" not in plain_answer.headers
    fields = {"prompt": "Names", "language": "de", "temperature": "0.4"}
    for stream in ({}, {"stream": "true"}):
        answer = send(server, SHORT, model="wav2vec2-base", **fields, **stream)
        assert answer.status_code == 200
        assert answer.headers["x-ignored-parameters"] == "prompt, language, temperature"
    verbose = send(server, SHORT, model="wav2vec2-base", response_format="verbose_json", **fields)
    assert verbose.headers["x-ignored-parameters"] == "prompt, language, temperature"
    logprobs = send(server, SHORT, model="wav2vec2-base", include="logprobs", languages="de", hotwords="Anna")
    assert logprobs.headers["x-ignored-parameters"] == "hotwords, languages, include"
    assert logprobs.json()["text"] == plain_answer.json()["text"]
    neutral = send(server, SHORT, model="wav2vec2-base", temperature="0", num_beams="1", prompt=" ")
    assert neutral.json() == plain_answer.json() and "x-ignored-parameters" not in neutral.headers


@pytest.mark.parametrize(
    "field",
    [
        {"num_beams": "4"},
        {"no_speech_threshold": "0.6"},
        {"condition_on_previous_text": "true"},
    ],
    ids=str,
)
def test_fields_of_this_server_that_need_a_decoder_are_refused(server, field: dict[str, str]) -> None:
    refused = send(server, SHORT, model="wav2vec2-base", **field)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == next(iter(field))
    assert "CTC head" in refused.json()["error"]["message"]


def test_the_routes_of_the_model(server) -> None:
    models = {model["name"]: model for model in server.get("/info").json()["models"]}
    assert models["wav2vec2-base"]["routes"] == [ROUTE] and models["wav2vec2-base"]["languages"] == []
    assert send(server, SHORT, "/v1/audio/translations", model="wav2vec2-base").status_code == 400
    refused = server.post("/embed", json={"model": "wav2vec2-base", "inputs": "a"})
    assert refused.status_code == 422 and ROUTE in refused.json()["error"]["message"]
    tokens = server.post("/tokenize", json={"model": "wav2vec2-base", "inputs": "HI YOU"}).json()
    assert [token["text"] for token in tokens[0]] == ["H", "I", " ", "Y", "O", "U"]


def test_a_request_past_its_deadline_gets_504(server) -> None:
    data = wav(LONG, bits=16)
    answer = httpx.post(
        server.url + ROUTE,
        files={"file": ("a.wav", data)},
        data={"model": "wav2vec2-base", "timeout_ms": "1"},
        timeout=60,
    )
    assert answer.status_code == 504 and answer.json()["error"]["code"] == "timeout"
