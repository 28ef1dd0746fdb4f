"""Parakeet-CTC over HTTP: text and word times equal those computed from the labels that transformers predicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from server.audio.frames import HOP_SAMPLES
from server.audio.silence import cut_at_silences, loudness_frames
from tests import warm_processes
from tests.e2e.conftest import RunningServer, serving
from tests.e2e.speech.recordings import ROUTE, send, transcript
from tests.parity.parakeet import BLANK, ENCODERS, TOKENS, write, write_text_files
from tests.parity.speech import recording

every_shape = pytest.mark.parametrize("shape", ENCODERS)
SHORT, LONG = recording(5.3, seed=1), recording(37.0, seed=2)


class Oracle:
    """A model of transformers with its processor."""

    def __init__(self, directory: Path, model: Any) -> None:
        self.model = model
        self.features = transformers.ParakeetFeatureExtractor.from_pretrained(directory)
        self.tokenizer = transformers.ParakeetTokenizer.from_pretrained(directory)
        self.step = 160 * model.config.encoder_config.subsampling_factor / 16_000

    def labels(self, samples: np.ndarray) -> list[int]:
        inputs = self.features(samples, sampling_rate=16_000, return_tensors="pt")
        with torch.inference_mode():
            count = int(self.model.encoder(**inputs).attention_mask.sum())
            return self.model(**inputs).logits[0, :count].argmax(-1).tolist()

    def text(self, samples: np.ndarray) -> str:
        return " ".join(self.tokenizer.decode(self.labels(samples), skip_special_tokens=True).split())

    def word_times(self, samples: np.ndarray) -> list[tuple[float, float]]:
        """Start and end in seconds of each word.

        A token that starts with `▁` begins a word; empty words are left out.
        """
        found: list[tuple[str, float, float]] = []
        place = 0
        for label, repeated in groupby(self.labels(samples)):
            first, place = place, place + len(list(repeated))
            if label == BLANK:
                continue
            token = TOKENS[label]
            if not found or token.startswith("▁"):
                found.append((token, first * self.step, place * self.step))
            else:
                found[-1] = found[-1][0] + token, found[-1][1], place * self.step
        return [(start, end) for text, start, end in found if text != "▁"]


@pytest.fixture(scope="module")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Oracle]]:
    found = {}
    for shape in ENCODERS:
        directory = tmp_path_factory.mktemp(shape)
        found[shape] = directory, Oracle(directory, write(directory, shape))
    return found


@pytest.fixture(scope="module")
def server(oracles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = [f"{shape}={directory}" for shape, (directory, _) in oracles.items()]
    with serving(tmp_path_factory.mktemp("server") / "log", *models, "--threads", "1") as running:
        yield running


@every_shape
def test_the_text_and_the_times_of_words(server, oracles, shape: str) -> None:
    oracle = oracles[shape][1]
    answer = transcript(server, SHORT, model=shape, **{"timestamp_granularities[]": ["word", "segment"]})
    assert answer["text"] == oracle.text(SHORT) and len(answer["words"]) > 3
    expected = [(start, min(end, 5.3)) for start, end in oracle.word_times(SHORT)]
    for word, (start, end) in zip(answer["words"], expected, strict=True):
        assert (word["start"], word["end"]) == (pytest.approx(start, abs=1e-3), pytest.approx(end, abs=1e-3))
    assert "".join(segment["text"] for segment in answer["segments"]).strip() == answer["text"]
    assert send(server, SHORT, model=shape).json()["text"] == answer["text"]


@every_shape
def test_a_long_recording_is_cut_at_pauses(server, oracles, shape: str) -> None:
    frames = loudness_frames(LONG)
    spans = cut_at_silences(frames, len(frames), 3000)
    assert len(spans) == 2
    parts = [oracles[shape][1].text(LONG[start * HOP_SAMPLES : end * HOP_SAMPLES]) for start, end in spans]
    assert transcript(server, LONG, model=shape)["text"] == " ".join(part for part in parts if part)


@pytest.mark.parametrize("samples", [1, 159, 161, 1500])
def test_recordings_of_boundary_lengths(server, samples: int) -> None:
    answer = transcript(server, LONG[:samples], model="parakeet-ctc")
    assert answer["duration"] == round(samples / 16_000, 3)


def test_the_routes_of_the_model(server) -> None:
    models = {model["name"]: model for model in server.get("/info").json()["models"]}
    assert models["parakeet-ctc"]["routes"] == [ROUTE]
    refused = send(server, SHORT, model="parakeet-ctc", num_beams="4")
    assert refused.status_code == 400 and "CTC head" in refused.json()["error"]["message"]
    assert all(first["end"] <= second["start"] for first, second in pairwise(transcript(server, SHORT)["segments"]))


@pytest.mark.parametrize("setting", [{"preemphasis": 0.9}, {"n_fft": 400}, {"feature_size": 128}, {"hop_length": 80}])
def test_another_feature_extractor_is_refused_by_name(tmp_path: Path, setting: dict[str, Any]) -> None:
    write(tmp_path, "parakeet-ctc")
    write_text_files(tmp_path, 80)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **setting}))
    done = warm_processes.run("check", f"it={tmp_path}")
    assert done.returncode == 1 and f"'{next(iter(setting))}' must be" in done.stderr
