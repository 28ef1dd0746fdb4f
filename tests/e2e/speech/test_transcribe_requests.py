"""Recordings over HTTP: formats, streams, refusals, limits, and clients that disconnect."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from server.audio.containers import container_of
from server.audio.decoder import Decoder
from server.audio.resample import resample
from tests.audio.compressed import encode
from tests.audio.wavs import wav
from tests.documented_commands import shell_blocks
from tests.e2e.speech.recordings import LONG, MAX_BYTES, PLAIN, ROUTE, send, transcript
from tests.parity.speech import recording
from tests.waiting import eventually, open_request, read_in_parts


def test_subtitles_equal_the_segments(server) -> None:
    fields = {"model": "whisper", "language": "de"}
    segments = transcript(server, LONG[3], **fields)["segments"]
    srt = send(server, LONG[3], response_format="srt", **fields)
    vtt = send(server, LONG[3], response_format="vtt", **fields)
    assert vtt.headers["content-type"].startswith("text/vtt") and vtt.text.startswith("WEBVTT\n\n")
    for page, point in ((srt.text, ","), (vtt.text, ".")):
        times = re.findall(rf"(\d\d):(\d\d):(\d\d)\{point}(\d{{3}}) --> (\d\d):(\d\d):(\d\d)\{point}(\d{{3}})\n", page)
        seconds = [
            [int(h) * 3600 + int(m) * 60 + int(s) + int(ms) / 1000 for h, m, s, ms in (t[:4], t[4:])] for t in times
        ]
        assert seconds == [[pytest.approx(segment["start"]), pytest.approx(segment["end"])] for segment in segments]
    assert re.findall(r"^(\d+)\n\d\d:", srt.text, re.MULTILINE) == [str(1 + at) for at in range(len(segments))]


def test_sample_rates_widths_and_channels(server) -> None:
    stereo = np.stack([recording(1.4, seed=5, rate=44_100), recording(1.4, seed=6, rate=44_100)], axis=1)
    same = resample(stereo.mean(axis=1), 44_100, 16_000)
    fields = {"model": "whisper", "language": "en"}
    expected = transcript(server, same, **fields)
    assert transcript(server, wav(stereo, 44_100, bits=32, is_float=True), **fields) == expected
    for bits in (16, 24, 32):
        assert transcript(server, wav(stereo, 44_100, bits=bits), **fields)["duration"] == expected["duration"] == 1.4


@pytest.mark.parametrize("samples", [1, 159, 161, 16_000, 16_001])
def test_recordings_of_boundary_lengths(server, samples: int) -> None:
    ours = transcript(server, recording(2.0, seed=1)[:samples], model="whisper", language="en")
    assert ours["duration"] == round(samples / 16_000, 3)
    assert all(segment["start"] <= segment["end"] <= ours["duration"] + 5e-4 for segment in ours["segments"])


def test_sampling_depends_on_the_seed(server) -> None:
    def text(**fields) -> str:
        return transcript(server, LONG[0], model="whisper", language="en", **fields)["text"]

    assert text(temperature=1.0, seed=4) == text(temperature=1.0, seed=4)
    assert len({text(temperature=1.0, seed=seed) for seed in range(4)}) > 1
    assert text(temperature=0) == text()


def test_concurrent_requests_beside_a_text_model(server) -> None:
    def tokens(seed: int) -> list[list[int]]:
        return [
            segment["tokens"] for segment in transcript(server, LONG[seed], model="whisper", language="de")["segments"]
        ]

    alone = [tokens(seed) for seed in LONG]
    story = {"model": "story", "prompt": "The old fox", "max_new_tokens": 60}
    apart = httpx.post(f"{server.url}/generate", json=story, timeout=60).json()["choices"]
    with ThreadPoolExecutor(8) as pool:
        stories = [pool.submit(httpx.post, f"{server.url}/generate", json=story, timeout=60) for _ in range(4)]
        crowd = [pool.submit(tokens, seed % 4) for seed in range(12)]
        assert [future.result() for future in crowd] == alone * 3
        assert all(future.result().json()["choices"] == apart for future in stories)


def test_a_client_that_leaves_frees_its_blocks(server) -> None:
    """If a client disconnects during generation, its KV blocks are freed.

    If the answer is complete before the disconnection is noticed, the test tries again.
    """

    def cancelled() -> float:
        return server.metric("triptych_requests_cancelled_total")

    def answered() -> float:
        return server.metric("triptych_requests_total", route=ROUTE, status="200")

    def made() -> float:
        return server.metric("triptych_generated_tokens_total", model="whisper")

    sent = {"files": {"file": ("a.wav", wav(recording(15.0, seed=1)))}, "data": PLAIN | {"model": "whisper"}}
    cancelled_before = cancelled()
    for _ in range(20):
        answered_before, made_before = answered(), made()
        with open_request(server.url + ROUTE, **sent):
            eventually(lambda before=made_before: made() > before)
        eventually(lambda before=answered_before: cancelled() > cancelled_before or answered() > before)
        if cancelled() > cancelled_before:
            break
    eventually(lambda: server.metric("triptych_requests_running") == server.metric("triptych_kv_blocks_used") == 0)
    assert cancelled() == cancelled_before + 1


def documented_commands() -> list[str]:
    """The commands of docs/requests.md and docs/speech.md that are marked as run by this file."""
    blocks = [block for block in shell_blocks() if block.reason == "tests/e2e/speech/test_transcribe_requests.py"]
    return [command for block in blocks for command in block.commands]


@pytest.mark.parametrize("command", documented_commands())
def test_the_documented_commands(server, tmp_path: Path, command: str) -> None:
    (tmp_path / "speech.wav").write_bytes(wav(LONG[0]))
    own = re.sub(r"/path/\w+\.\w+", str(tmp_path / "speech.wav"), command)
    own = own.replace("http://127.0.0.1:8000", server.url).replace("curl ", "curl --fail-with-body ", 1)
    done = subprocess.run(["bash", "-c", own], capture_output=True, text=True, timeout=60)
    answer = "1\n00:00:0" if "srt" in own else "{"
    assert done.returncode == 0 and done.stdout.startswith(answer), done.stdout


def test_there_are_documented_commands() -> None:
    assert len(documented_commands()) == 3


def test_metrics_of_a_recording(server) -> None:
    before = server.metric("triptych_generated_tokens_total", model="whisper")
    answers = server.metric("triptych_requests_total", route=ROUTE, status="200")
    transcript(server, LONG[0], model="whisper", language="en")
    assert server.metric("triptych_generated_tokens_total", model="whisper") > before
    assert server.metric("triptych_requests_total", route=ROUTE, status="200") == answers + 1


REFUSED = [
    ({"stream": "true", "response_format": "srt"}, "stream"),
    ({"language": "klingon"}, "language"),
    ({"temperature": "1.5"}, "temperature"),
    ({"temperature": "warm"}, "temperature"),
    ({"temperature": "0.5", "num_beams": "2"}, "num_beams"),
    ({"response_format": "docx"}, "response_format"),
    ({"timestamp_granularities[]": "segment"}, "timestamp_granularities"),
    ({"timestamp_granularities[]": "word", "response_format": "srt"}, "timestamp_granularities"),
    ({"chunking_strategy": "server_vad"}, "chunking_strategy"),
    ({"chunking_strategy": '{"type": "client_vad"}'}, "chunking_strategy"),
    ({"response_format": "diarized_json"}, "response_format"),
    ({"include[]": "logprobs", "response_format": "text"}, "include"),
    ({"include[]": "words"}, "include"),
    ({"languages[]": "klingon"}, "languages"),
    ({"language": "de", "languages[]": "de"}, "languages"),
    ({"hotwords": "<|de|>"}, "hotwords"),
    ({"temperature": "[0, 2]"}, "temperature"),
    ({"chunking_strategy": "auto", "condition_on_previous_text": "true"}, "condition_on_previous_text"),
    ({"compression_ratio_threshold": "2"}, "compression_ratio_threshold"),
    ({"logprob_threshold": "-1"}, "logprob_threshold"),
    ({"no_speech_threshold": "2"}, "no_speech_threshold"),
    ({"temperature_increment_on_fallback": "0.01"}, "temperature_increment_on_fallback"),
    ({"prompt": "<|de|> hello"}, "prompt"),
    ({"model": "story"}, "model"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[str(fields) for fields, _ in REFUSED])
def test_a_refusal_names_the_field(server, fields: dict, param: str) -> None:
    response = send(server, LONG[0], **({"model": "whisper"} | fields))
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == param and error["code"] == "invalid_request"


@pytest.mark.parametrize("name", ["mp3", "m4a", "webm", "ogg-opus", "flac"])
def test_compressed_files(server, name: str) -> None:
    """A compressed file gives the same answer as its decoded samples.

    `tests/audio/test_decoder.py` compares these samples with the original.
    """
    rate = 48_000 if name in ("webm", "ogg-opus") else 16_000
    data = encode(name, resample(LONG[0], 16_000, rate), rate)
    decoder = Decoder()
    samples = decoder.decode(data, container_of(data), 20)
    decoder.close()
    fields = {"model": "whisper", "language": "de"}
    assert transcript(server, data, **fields) == transcript(server, samples, **fields)


REPETITIVE = {"compression_ratio_threshold": "0.1", "logprob_threshold": "-99"}
"""Fields with thresholds with which every text counts as too repetitive."""


def test_a_rejected_window_is_decoded_again_at_a_higher_temperature(server) -> None:
    fields = {"model": "whisper", "language": "en", "seed": "5"}
    plain = transcript(server, LONG[1], **fields)
    lowest = min(segment["avg_logprob"] for segment in plain["segments"])
    step = {"temperature_increment_on_fallback": "0.5"}
    tolerant = {"compression_ratio_threshold": "100", "logprob_threshold": str(lowest - 1e-3)}
    assert transcript(server, LONG[1], **step, **tolerant, **fields)["segments"] == plain["segments"]
    # Every attempt is rejected, and the likeliest one is used.
    strict = transcript(server, LONG[1], **step, **tolerant | {"logprob_threshold": "0"}, **fields)
    assert strict["segments"][0]["avg_logprob"] >= plain["segments"][0]["avg_logprob"]
    assert strict == transcript(server, LONG[1], **step, **tolerant | {"logprob_threshold": "0"}, **fields)
    # Every attempt is rejected, and the least repetitive one is used, which is a sampled one.
    varied = transcript(server, LONG[1], **step, **REPETITIVE, **fields)
    assert {segment["temperature"] for segment in varied["segments"]} & {0.5, 1.0}
    assert varied["text"] != plain["text"]


def events(server, samples: np.ndarray, **fields) -> tuple[list[dict], str]:
    """Send a recording with `stream=true`. Returns the events of the stream, and its content type."""
    files = {"file": ("a.wav", wav(samples, bits=32, is_float=True))}
    with httpx.stream(
        "POST", server.url + ROUTE, files=files, data=PLAIN | fields | {"stream": "true"}, timeout=60
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
        assert answer.status_code == 200, lines
        return [json.loads(line.removeprefix("data: ")) for line in lines], answer.headers["content-type"]


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "whisper"},
        {"model": "whisper-wide-ear"},
        {"model": "whisper", "num_beams": "3"},
        {"model": "whisper-wide-ear", "response_format": "text"},
        {"model": "whisper", "chunking_strategy": "auto"},
        {"model": "whisper-wide-ear", "no_speech_threshold": "0.5"},
        {"model": "whisper-wide-ear", "temperature_increment_on_fallback": "0.5", "seed": "3"},
    ],
    ids=str,
)
@pytest.mark.parametrize("is_long", [True, False], ids=["long", "short"])
def test_a_stream_has_the_text_of_the_answer(server, fields: dict, is_long: bool) -> None:
    fields = {"language": "en"} | fields
    samples = LONG[2] if is_long else recording(0.55, seed=3)
    whole = send(server, samples, **fields | {"response_format": "json"}).json()
    has_parts = is_long and whole["text"] and "chunking_strategy" not in fields
    found, kind = read_in_parts(
        lambda: events(server, samples, **fields), lambda answer: len(answer[0]) > 2 or not has_parts
    )
    assert kind.startswith("text/event-stream")
    *deltas, done = found
    assert done == {"type": "transcript.text.done"} | whole
    assert {delta["type"] for delta in deltas} <= {"transcript.text.delta"}
    assert "".join(delta["delta"] for delta in deltas) == whole["text"]


def test_silence_has_no_text(server) -> None:
    """Digital silence and faint noise have no text, with and without voice activity detection.

    The recording has 19 s, because this server accepts at most 20 s.
    """
    faint = np.random.default_rng(1).normal(0, 1e-3, 19 * 16_000).astype(np.float32)
    for samples in (np.zeros_like(faint), faint):
        for mode in ({}, {"chunking_strategy": "auto"}, {"vad_filter": "true"}):
            answer = transcript(server, wav(samples), model="whisper", **mode)
            assert (answer["text"], answer["segments"], answer["duration"]) == ("", [], 19.0)


def test_silence_is_left_out_and_times_are_those_of_the_recording(server) -> None:
    """With voice activity detection, a pause of four seconds is left out, but times still count it.

    No segment and no word starts in the middle of the pause.
    """
    gap = np.zeros(4 * 16_000, dtype=np.float32)
    samples = wav(np.concatenate([LONG[0], gap, LONG[1]]))
    granularities = {"timestamp_granularities[]": ["word", "segment"]}
    for mode in ({"vad_filter": "true"}, {"chunking_strategy": "auto"}):
        answer = transcript(server, samples, model="whisper", language="en", **mode, **granularities)
        middle = len(LONG[0]) / 16_000 + 2
        for part in (*answer["segments"], *answer["words"]):
            assert 0 <= part["start"] <= part["end"] <= answer["duration"]
            assert not middle - 1.5 < part["start"] < middle + 1.5
        starts = [segment["start"] for segment in answer["segments"]]
        assert starts == sorted(starts) and starts[0] < middle < starts[-1]


def test_fields_of_the_openai_client(server) -> None:
    fields = {"model": "whisper", "language": "en"}
    said = recording(0.9, seed=1)
    plain = send(server, said, **fields).json()
    assert send(server, said, **fields, seed="", prompt="").json() == plain
    assert send(server, said, model="whisper", language="").status_code == 200
    found = send(server, said, **fields, **{"include[]": "logprobs"}).json()
    assert found["text"] == plain["text"] and all(token["logprob"] < 0 for token in found["logprobs"])
    data = bytes(byte for token in found["logprobs"] for byte in token["bytes"])
    assert data.decode("utf-8", "replace").strip() == plain["text"]
    auto = send(server, said, **fields, chunking_strategy="auto").json()
    vad = send(server, said, **fields, chunking_strategy='{"type": "server_vad", "threshold": 0.5}')
    assert vad.json() == auto and vad.headers["x-ignored-parameters"] == "chunking_strategy.threshold"
    assert send(server, said, **fields, **{"chunking_strategy[type]": "server_vad"}).json() == auto
    hot = send(server, said, **fields, hotwords="The garden").json()
    assert hot == send(server, said, **fields, **{"keywords[]": "The garden"}).json()
    assert hot == send(server, said, **fields, prompt="The garden").json() != plain
    german = transcript(server, said, model="whisper", **{"languages[]": "de"})
    assert german["language"] == "german"


def test_text_is_the_same_each_time_by_default(server) -> None:
    """Two requests without a seed have the same text, even if every window is rejected and sampled."""
    fields = {"model": "whisper", "language": "en", "response_format": "verbose_json"} | REPETITIVE
    files = {"file": ("a.wav", wav(LONG[1]))}
    one, other = (httpx.post(server.url + ROUTE, files=files, data=fields, timeout=60).json() for _ in range(2))
    assert one == other and any(segment["temperature"] > 0 for segment in one["segments"])


def test_a_stream_that_fails_before_its_text_has_a_status(server) -> None:
    files = {"file": ("a.mp3", b"ID3" + bytes(99))}
    refused = httpx.post(server.url + ROUTE, files=files, data={"model": "whisper", "stream": "true"}, timeout=60)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "file"
    late = send(server, recording(15.0), model="whisper", stream="true", timeout_ms="30")
    assert late.status_code == 504 or '"code":"timeout"' in late.text
    eventually(lambda: server.metric("triptych_requests_running") == 0)


def test_the_segment_granularity_is_the_default(server) -> None:
    fields = {"model": "whisper", "language": "en"}
    assert transcript(server, LONG[0], **fields, **{"timestamp_granularities[]": "segment"}) == transcript(
        server, LONG[0], **fields
    )


BODIES = [
    ({"files": {"file": ("a.mp3", b"ID3" + bytes(99))}}, 400, "MP3"),
    ({"files": {"file": ("a.flac", b"fLaC" + bytes(99))}}, 400, "FLAC"),
    ({"files": {"file": ("a.wav", wav(LONG[0], kind=0x11))}}, 400, "adpcm_ima_wav"),
    ({"files": {"file": ("a.wav", wav(recording(20.1)))}}, 400, "20.1 seconds"),
    ({"files": {"file": ("a.wav", wav(LONG[0])[:1000])}}, 400, "cut off"),
    ({"files": {"file": ("a.wav", bytes(MAX_BYTES))}}, 413, "more than"),
    ({"files": {"sound": ("a.wav", wav(LONG[0]))}}, 400, "file"),
    ({"files": [("file", ("a.wav", wav(LONG[0]))), ("file", ("b.wav", wav(LONG[0])))]}, 400, "limit: 1 file"),
    ({"files": {"file": (None, "text")}}, 400, "file"),
    ({"files": {"model": (None, "whisper")}}, 400, "required"),
    ({"json": {"file": "AAAA"}}, 415, "multipart"),
    ({"content": b"--x", "headers": {"content-type": "multipart/form-data"}}, 400, "malformed"),
    ({"content": b"--y\r\n", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 400, "malformed"),
]


@pytest.mark.parametrize(("body", "status", "named"), BODIES, ids=range(len(BODIES)))
def test_invalid_bodies_are_refused_with_the_reason(server, body: dict, status: int, named: str) -> None:
    response = httpx.post(server.url + ROUTE, timeout=60, **body)
    assert response.status_code == status and named in response.json()["error"]["message"]


def test_the_size_limit_applies_to_a_streamed_body(server) -> None:
    """A body without a declared length is refused at the limit of recordings, not at the limit of JSON bodies."""

    def endless() -> Iterator[bytes]:
        for _ in range(4 * MAX_BYTES >> 16):
            yield bytes(1 << 16)

    headers = {"content-type": "multipart/form-data; boundary=x"}
    assert httpx.post(server.url + ROUTE, content=endless(), headers=headers, timeout=60).status_code == 413


def test_info_lists_the_routes_of_the_model(server) -> None:
    models = {model["name"]: model for model in server.get("/info").json()["models"]}
    assert models["whisper"]["routes"] == [ROUTE, "/v1/audio/translations"]
    assert models["english"]["routes"] == [ROUTE]
    assert models["whisper"]["languages"] == ["en", "de", "fr"] and models["english"]["languages"] == ["en"]
    refused = server.post("/generate", json={"model": "whisper", "prompt": "a"})
    assert refused.status_code == 422 and ROUTE in refused.json()["error"]["message"]


def test_a_request_past_its_deadline_gets_504(server) -> None:
    response = send(server, recording(15.0), model="whisper", timeout_ms="30")
    assert response.status_code == 504 and response.json()["error"]["code"] == "timeout"


def test_as_many_recordings_as_allowed_are_served_at_once(server) -> None:
    with ThreadPoolExecutor(16) as pool:
        sent = [pool.submit(send, server, wav(LONG[seed % 4]), model="whisper", language="en") for seed in range(16)]
        assert [future.result().status_code for future in sent] == [200] * 16
