"""Clients of other servers: huggingface_hub's automatic-speech-recognition, and whisper.cpp's `/inference`."""

from __future__ import annotations

import base64
from pathlib import Path

import httpx
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from tests.audio.wavs import wav
from tests.e2e.conftest import RunningServer
from tests.e2e.speech.recordings import LONG, every_shape, send, transcript

RECORDING = wav(LONG[0], bits=32, is_float=True)
ONE_ATTEMPT = {"temperature_increment_on_fallback": "0", "no_speech_threshold": ""}
"""Fields for our own route that make it like `/inference`: each window is decoded once, default silence threshold."""


def inference(server: RunningServer, **fields) -> httpx.Response:
    files = {"file": ("a.wav", RECORDING)}
    return httpx.post(server.url + "/inference", files=files, data=fields, timeout=120)


@every_shape
def test_the_hub_client_sends_bytes_and_files(server: RunningServer, shape: str, tmp_path: Path) -> None:
    ours = transcript(server, LONG[0], model=shape)
    client = InferenceClient(model=f"{server.url}/models/{shape}")
    assert client.automatic_speech_recognition(RECORDING).text == ours["text"]
    (tmp_path / "a.wav").write_bytes(RECORDING)
    found = client.automatic_speech_recognition(tmp_path / "a.wav")
    assert found.text == ours["text"] and found.chunks is None
    timed = client.automatic_speech_recognition(RECORDING, extra_body={"return_timestamps": True})
    assert timed.text == ours["text"]
    assert [(chunk.text, *chunk.timestamp) for chunk in timed.chunks] == [
        (segment["text"], segment["start"], segment["end"]) for segment in ours["segments"]
    ]


def test_the_hub_client_finds_the_first_speech_model_and_the_task_in_the_path(server: RunningServer) -> None:
    text = transcript(server, LONG[0], model="whisper")["text"]
    assert InferenceClient(model=server.url).automatic_speech_recognition(RECORDING).text == text
    path = f"{server.url}/models/whisper/pipeline/automatic-speech-recognition"
    assert httpx.post(path, content=RECORDING, timeout=120).json() == {"text": text}
    other = httpx.post(f"{server.url}/models/whisper/pipeline/fill-mask", content=RECORDING)
    assert other.status_code == 415 and "application/json" in other.json()["error"]


def test_decoding_options_of_the_hub_reach_the_search(server: RunningServer) -> None:
    decoding = {"num_beams": 4, "language": "fr", "do_sample": False}
    body = {"inputs": base64.b64encode(RECORDING).decode(), "parameters": {"generation_parameters": decoding}}
    answer = httpx.post(f"{server.url}/models/whisper", json=body, timeout=120)
    ours = transcript(server, LONG[0], model="whisper", num_beams=4, language="fr")
    assert answer.json() == {"text": ours["text"]}
    words = body | {"parameters": {"return_timestamps": "word", "generate_kwargs": {"language": "fr"}}}
    answer = httpx.post(f"{server.url}/models/whisper", json=words, timeout=120).json()
    ours = transcript(server, LONG[0], model="whisper", language="fr", timestamp_granularities="word")
    assert answer["chunks"] == [
        {"text": word["word"], "timestamp": [word["start"], word["end"]]} for word in ours["words"]
    ]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"inputs": "not base64!"}, "inputs"),
        ({"inputs": "aaaa", "parameters": {"generation_parameters": {"top_k": 3}}}, "top_k"),
        ({"inputs": "aaaa", "parameters": {"generation_parameters": {}, "generate_kwargs": {}}}, "generate_kwargs"),
    ],
)
def test_bodies_of_the_hub_that_cannot_be_meant(server: RunningServer, body: dict, named: str) -> None:
    answer = httpx.post(f"{server.url}/models/whisper", json=body)
    assert answer.status_code == 422 and named in answer.json()["error"]


def test_files_that_are_no_recordings(server: RunningServer) -> None:
    with pytest.raises(HfHubHTTPError, match="supported are WAV"):
        InferenceClient(model=f"{server.url}/models/whisper").automatic_speech_recognition(b"no audio at all")
    empty = httpx.post(f"{server.url}/models/whisper", headers={"content-type": "audio/wav"})
    assert empty.status_code == 422 and "empty" in empty.json()["error"]
    text_model = httpx.post(f"{server.url}/models/story", content=RECORDING, headers={"content-type": "audio/wav"})
    assert text_model.status_code == 415 and "application/json" in text_model.json()["error"]


@every_shape
def test_whisper_cpp_answers_in_every_format(server: RunningServer, shape: str) -> None:
    ours = transcript(server, LONG[0], model=shape, language="de", **ONE_ATTEMPT)
    lines = "".join(f"{segment['text']}\n" for segment in ours["segments"])
    same = {"model": shape, "language": "de", "temperature_inc": "0"}
    assert inference(server, **same, temperature="0.0", response_format="text").text == lines
    found = inference(server, **same, response_format="verbose_json").json()
    assert {name: found[name] for name in ("task", "language", "duration")} == {
        name: ours[name] for name in ("task", "language", "duration")
    }
    assert found["text"] == lines
    assert [(part["start"], part["end"], part["tokens"]) for part in found["segments"]] == [
        (part["start"], part["end"], part["tokens"]) for part in ours["segments"]
    ]
    for name in ("srt", "vtt"):
        theirs = send(server, LONG[0], model=shape, language="de", response_format=name, **ONE_ATTEMPT)
        assert inference(server, **same, response_format=name).text == theirs.text


def test_whisper_cpp_fields(server: RunningServer) -> None:
    translated = inference(
        server, translate="true", language="de", no_timestamps="true", response_format="verbose_json"
    )
    assert translated.json()["task"] == "translate"
    assert all("start" not in segment for segment in translated.json()["segments"])
    assert (
        inference(server, language="auto", temperature_inc="0").json() == inference(server, temperature_inc="0").json()
    )
    dropped = inference(server, best_of="2", max_len="0", entropy_thold="2.4", diarize="false", offset_t="0")
    assert dropped.status_code == 200 and dropped.headers["x-ignored-parameters"] == "best_of, entropy_thold"
    for field, value in (("diarize", "true"), ("offset_t", "100"), ("temperature_inc", "0.05"), ("beam_size", "99")):
        refused = inference(server, **{field: value})
        assert refused.status_code == 422 and field in refused.json()["error"], field
    refused = inference(server, beam_size="2", temperature="0.5")
    assert refused.status_code == 422 and "`beam_size`" in refused.json()["error"], "an error of the operation"
