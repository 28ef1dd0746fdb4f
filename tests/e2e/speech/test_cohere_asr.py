"""Cohere ASR over HTTP: the text equals that of transformers with the prompt of its processor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from server.audio.frames import HOP_SAMPLES
from tests import warm_processes
from tests.e2e.conftest import RunningServer, serving
from tests.e2e.speech.recordings import ROUTE, send, transcript
from tests.parity.cohere_asr import END, SHAPES, features, prompt, write
from tests.parity.speech import recording

every_shape = pytest.mark.parametrize("shape", SHAPES)
SHORT, LONG = recording(3.3, seed=1), recording(47.0, seed=2)
MAX_NEW_TOKENS = 72 - len(prompt("en"))
"""Context length (72 tokens) without the prompt."""


class Oracle:
    """A model of transformers with its processor."""

    def __init__(self, directory: Path, model: Any) -> None:
        self.directory, self.model = directory, model
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)

    def text(self, samples: np.ndarray, language: str, **settings: Any) -> str:
        ids = torch.tensor([prompt(language)])
        inputs = features(self.directory, torch.from_numpy(samples))
        with torch.inference_mode():
            found = self.model.generate(
                **inputs, decoder_input_ids=ids, max_new_tokens=MAX_NEW_TOKENS, do_sample=False, **settings
            )
        new = [token for token in found[0, ids.shape[1] :].tolist() if token != END]
        return self.tokenizer.decode(new, skip_special_tokens=True).strip()


@pytest.fixture(scope="module")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Oracle]:
    found = {}
    for shape in SHAPES:
        directory = tmp_path_factory.mktemp(shape)
        found[shape] = Oracle(directory, write(directory, shape))
    return found


@pytest.fixture(scope="module")
def server(oracles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = [f"{shape}={oracle.directory}" for shape, oracle in oracles.items()]
    with serving(tmp_path_factory.mktemp("server") / "log", *models, "--threads", "1") as running:
        yield running


@every_shape
@pytest.mark.parametrize(("seconds", "language"), [(0.1, "en"), (3.3, "en"), (3.3, "de"), (12.0, "ja")])
def test_the_text_equals_transformers(server, oracles, shape: str, seconds: float, language: str) -> None:
    samples = recording(seconds, seed=int(7 * seconds))
    answer = send(server, samples, model=shape, language=language)
    assert answer.status_code == 200 and "x-ignored-parameters" not in answer.headers
    assert answer.json()["text"] == oracles[shape].text(samples, language)


@every_shape
def test_with_four_beams(server, oracles, shape: str) -> None:
    expected = oracles[shape].text(SHORT, "de", num_beams=4)
    assert send(server, SHORT, model=shape, language="German", num_beams="4").json()["text"] == expected


@every_shape
@pytest.mark.parametrize(("language", "name", "space"), [("en", "english", " "), ("ja", "japanese", "")])
def test_a_long_recording_is_cut_at_pauses(server, oracles, shape, language, name, space) -> None:
    answer = transcript(server, LONG, model=shape, language=language)
    assert (answer["task"], answer["language"], answer["duration"]) == ("transcribe", name, 47.0)
    segments = answer["segments"]
    cuts = [round(segment["start"] * 100) * HOP_SAMPLES for segment in segments] + [len(LONG)]
    oracle = oracles[shape]
    assert [segment["text"] for segment in segments] == [
        space + oracle.text(LONG[start:end], language) for start, end in pairwise(cuts)
    ]
    assert answer["text"] == "".join(segment["text"] for segment in segments).strip()


def test_silence_has_no_text(server) -> None:
    quiet = np.random.default_rng(0).standard_normal(60 * 16_000).astype(np.float32) * 1e-4
    assert send(server, quiet, model="cohere-transcribe", language="en").json()["text"] == ""


@pytest.mark.parametrize("language", [None, "fr", "xx"])
def test_a_language_is_required_and_checked(server, language: str | None) -> None:
    given = {} if language is None else {"language": language}
    refused = send(server, SHORT, model="cohere-transcribe", **given)
    error = refused.json()["error"]
    assert refused.status_code == 400 and error["param"] == "language" and error["message"].endswith("de, en, ja")


def test_the_routes_of_the_model(server) -> None:
    models = {model["name"]: model for model in server.get("/info").json()["models"]}
    assert models["cohere-transcribe"]["routes"] == [ROUTE]
    assert models["cohere-transcribe"]["languages"] == ["de", "en", "ja"]
    refused = send(server, SHORT, "/v1/audio/translations", model="cohere-transcribe")
    assert refused.status_code == 400 and ROUTE in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "change", [{"dither": 0.0}, {"n_fft": 400}, {"feature_size": 80}, {"preemphasis": 0.9}], ids=str
)
def test_another_feature_extractor_is_refused_by_name(tmp_path: Path, change: dict[str, Any]) -> None:
    write(tmp_path, "cohere-transcribe")
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    done = warm_processes.run("check", f"it={tmp_path}")
    assert done.returncode == 1 and f"'{next(iter(change))}' must be" in done.stderr
