"""Speech models without timestamp tokens, over HTTP: the text equals that of transformers for the same recordings."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers

from server.audio.frames import HOP_SAMPLES
from tests.audio.wavs import wav
from tests.e2e.conftest import REPOSITORY, RunningServer, serving
from tests.e2e.speech.recordings import ROUTE, send, transcript
from tests.parity import moonshine
from tests.parity.speech import recording

SHAPES = dict.fromkeys(moonshine.SHAPES, moonshine.write)
every_shape = pytest.mark.parametrize("shape", SHAPES)
SHORT, LONG = recording(3.3, seed=1), recording(47.0, seed=2)
TOKENS_PER_SECOND, MIN_TOKENS = 13, 8


@dataclass
class Oracle:
    """A model of transformers with its feature extractor and tokenizer."""

    directory: Path
    model: Any

    def __post_init__(self) -> None:
        self.features = transformers.AutoFeatureExtractor.from_pretrained(self.directory)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.directory)

    def generated(self, samples: np.ndarray, **settings: Any) -> list[int]:
        """The ids of the generated tokens, without the end token. settings: arguments of `generate`."""
        read = self.features(samples, sampling_rate=16_000, return_tensors="pt").input_values[0]
        inputs = moonshine.inputs(self.model, read)
        limit = max(MIN_TOKENS, math.ceil(len(samples) / 16_000 * TOKENS_PER_SECOND))
        with torch.inference_mode():
            limit = min(limit, self.model.generation_config.max_length - 1)
            found = self.model.generate(**inputs, max_new_tokens=limit, do_sample=False, **settings)[0].tolist()
        return [token for token in found[1:] if token != moonshine.END]

    def text(self, samples: np.ndarray, **settings: Any) -> str:
        return self.tokenizer.decode(self.generated(samples, **settings), skip_special_tokens=True).strip()


@pytest.fixture(scope="module")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Oracle]:
    found = {}
    for shape, write in SHAPES.items():
        directory = tmp_path_factory.mktemp(shape)
        found[shape] = Oracle(directory, write(directory, shape))
    return found


@pytest.fixture(scope="module")
def server(oracles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = [f"{shape}={oracle.directory}" for shape, oracle in oracles.items()]
    models.append(f"story={REPOSITORY / 'weights' / 'demo' / 'story'}")
    with serving(tmp_path_factory.mktemp("server") / "log", *models, "--threads", "1") as running:
        yield running


@every_shape
@pytest.mark.parametrize("seconds", [0.1, 0.55, 3.3, 12.0])
def test_the_text_equals_transformers(server, oracles, shape: str, seconds: float) -> None:
    samples = recording(seconds, seed=int(7 * seconds))
    expected = oracles[shape].text(samples)
    assert send(server, samples, model=shape).json()["text"] == expected
    assert send(server, samples, model=shape, response_format="text").text == expected + "\n"
    assert expected or seconds < 1


@every_shape
def test_with_four_beams(server, oracles, shape: str) -> None:
    expected = oracles[shape].text(SHORT, num_beams=4)
    assert send(server, SHORT, model=shape, num_beams="4").json()["text"] == expected


@every_shape
def test_a_long_recording_is_cut_at_pauses(server, oracles, shape: str) -> None:
    """A long recording is cut into windows at pauses. Each window has the text of transformers for this part.

    Every window is one segment, and one delta of a stream.
    """
    answer = transcript(server, LONG, model=shape)
    assert (answer["task"], answer["language"], answer["duration"]) == ("transcribe", "und", 47.0)
    segments = answer["segments"]
    assert [one["end"] == other["start"] for one, other in pairwise(segments)] == [True]
    assert segments[0]["start"] == 0 and segments[-1]["end"] == 47.0 and 15 <= segments[0]["end"] <= 30
    cuts = [round(segment["start"] * 100) * HOP_SAMPLES for segment in segments] + [len(LONG)]
    oracle = oracles[shape]
    assert [segment["text"] for segment in segments] == [
        " " + oracle.text(LONG[start:end]) for start, end in pairwise(cuts)
    ]
    assert answer["text"] == "".join(segment["text"] for segment in segments).strip()
    assert all(segment["avg_logprob"] < 0 for segment in segments)
    streamed = send(server, LONG, model=shape, stream="true")
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert [event["delta"] for event in events[:-1]] == [segments[0]["text"].strip(), segments[1]["text"]]
    assert events[-1]["text"] == answer["text"]
    assert send(server, LONG, model=shape, response_format="srt").text.startswith("1\n00:00:00,000 --> 00:00:")


def test_log_probabilities_of_tokens(server, oracles) -> None:
    oracle = oracles["moonshine-tiny"]
    answer = send(server, SHORT, model="moonshine-tiny", include="logprobs").json()
    ids = oracle.generated(SHORT)
    inputs = oracle.features(SHORT, sampling_rate=16_000, return_tensors="pt").input_values
    with torch.inference_mode():
        logits = oracle.model(inputs, decoder_input_ids=torch.tensor([[moonshine.START, *ids]])).logits[0]
    scores = logits.log_softmax(-1)
    text_ids = [(place, token) for place, token in enumerate(ids) if token > moonshine.END]
    assert [entry["token"] for entry in answer["logprobs"]] == [
        moonshine.TOKENS[token].replace("▁", " ") for _, token in text_ids
    ]
    for entry, (place, token) in zip(answer["logprobs"], text_ids, strict=True):
        assert entry["logprob"] == pytest.approx(float(scores[place, token]), abs=1e-4)


def test_silence_has_no_text(server) -> None:
    quiet = np.random.default_rng(0).standard_normal(60 * 16_000).astype(np.float32) * 1e-4
    assert send(server, quiet, model="moonshine-tiny").json()["text"] == ""
    assert transcript(server, quiet, model="moonshine-tiny", vad_filter="true")["segments"] == []


def test_silence_is_left_out_and_times_are_those_of_the_recording(server, oracles) -> None:
    speech, pause = recording(4.0, seed=3), np.zeros(8 * 16_000, np.float32)
    answer = transcript(server, np.concatenate([pause, speech, pause]), model="moonshine-tiny", vad_filter="true")
    (segment,) = answer["segments"]
    assert 7 <= segment["start"] <= 8.3 and 11.5 <= segment["end"] <= 13 and answer["duration"] == 20.0


def test_sampling_depends_on_the_seed(server) -> None:
    texts = [send(server, SHORT, model="moonshine-tiny", temperature="0.9", seed=seed).json()["text"] for seed in "112"]
    assert texts[0] == texts[1] != texts[2]


def test_fields_of_the_dialect_that_the_model_cannot_grant_are_dropped_and_named(server) -> None:
    plain = send(server, SHORT, model="moonshine-tiny")
    assert "x-ignored-parameters" not in plain.headers
    answer = send(server, SHORT, model="moonshine-tiny", prompt="Names", language="de", hotwords="Anna")
    assert answer.headers["x-ignored-parameters"] == "prompt, hotwords, language"
    assert answer.json() == plain.json()


@pytest.mark.parametrize(
    "field",
    [
        {"timestamp_granularities[]": "word", "response_format": "verbose_json"},
        {"no_speech_threshold": "0.6"},
        {"logprob_threshold": "-1", "temperature_increment_on_fallback": "0.2"},
        {"compression_ratio_threshold": "2.4", "temperature_increment_on_fallback": "0.2"},
        {"condition_on_previous_text": "true"},
    ],
    ids=str,
)
def test_fields_that_need_times_are_refused_by_name(server, field: dict[str, str]) -> None:
    refused = send(server, SHORT, model="moonshine-tiny", **field)
    names = {name.removesuffix("[]") for name in field}
    assert refused.status_code == 400 and refused.json()["error"]["param"] in names
    assert "writes text without times" in refused.json()["error"]["message"]


def test_times_of_words_are_refused_by_the_name_of_the_client(server) -> None:
    body = {"inputs": base64.b64encode(wav(SHORT)).decode(), "parameters": {"return_timestamps": "word"}}
    refused = httpx.post(server.url + "/models/moonshine-tiny", json=body, timeout=60)
    assert refused.status_code == 422 and "`return_timestamps`" in refused.text


def test_the_routes_of_the_model(server) -> None:
    models = {model["name"]: model for model in server.get("/info").json()["models"]}
    assert models["moonshine-tiny"]["routes"] == [ROUTE] and models["moonshine-tiny"]["languages"] == []
    assert send(server, SHORT, "/v1/audio/translations", model="moonshine-tiny").status_code == 400
    refused = server.post("/generate", json={"model": "moonshine-tiny", "prompt": "a"})
    assert refused.status_code == 422 and ROUTE in refused.json()["error"]["message"]


def test_a_request_past_its_deadline_gets_504(server) -> None:
    files = {"file": ("a.wav", wav(LONG, bits=16))}
    data = {"model": "moonshine-tiny", "timeout_ms": "1"}
    answer = httpx.post(server.url + ROUTE, files=files, data=data, timeout=60)
    assert answer.status_code == 504 and answer.json()["error"]["code"] == "timeout"
