"""`POST /v1/audio/transcriptions/live` answers while the body is sent: turns, texts and refusals."""

from __future__ import annotations

import json
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.audio.wavs import wav
from tests.e2e.conftest import RunningServer, serving
from tests.e2e.speech.recordings import transcript
from tests.parity.speech import recording
from tests.waiting import HANG_SECONDS, eventually

RATE = 16_000
PATH = "/v1/audio/transcriptions/live"
SPEECH = recording(1.5, seed=3, rate=RATE)
PCM = (np.clip(SPEECH, -1, 1) * 32767).astype("<i2")
QUIET = np.zeros(RATE, dtype="<i2")
TURNS = np.concatenate([QUIET, PCM, QUIET, QUIET, PCM, QUIET])
QUERY = {"model": "whisper", "language": "de", "interval_ms": "400"}


class Live:
    """A request whose body is sent in chunks while its answer is read."""

    def __init__(self, server: RunningServer, query: dict[str, str], headers: dict[str, str]) -> None:
        address = httpx.URL(server.url)
        self._socket = socket.create_connection((address.host, address.port), HANG_SECONDS)
        lines = [f"POST {PATH}?{httpx.QueryParams(query)} HTTP/1.1", f"Host: {address.host}:{address.port}"]
        lines += [f"{name}: {value}" for name, value in ({"Transfer-Encoding": "chunked"} | headers).items()]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self._file = self._socket.makefile("rb")

    def send(self, audio: bytes, piece: int = 3_201) -> None:
        """Send audio in chunks of `piece` bytes. An odd number cuts samples of two bytes."""
        for at in range(0, len(audio), piece):
            data = audio[at : at + piece]
            self._socket.sendall(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self._socket.sendall(b"0\r\n\r\n")

    def head(self) -> tuple[int, dict[str, str]]:
        """Read the status and the headers of the answer."""
        status = int(self._file.readline().split()[1])
        lines = iter(lambda: self._file.readline().decode().strip(), "")
        return status, {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of the answer, up to its end."""
        while size := int(self._file.readline() or b"0", 16):
            data = self._file.read(size)
            self._file.readline()
            for line in data.decode().splitlines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])

    def until(self, kind: str) -> list[dict[str, Any]]:
        """Read events up to the first one whose type is `kind`. Returns them."""
        found = []
        for event in self.events():
            found.append(event)
            if event.get("type") == kind:
                return found
        raise AssertionError(f"the answer ended without {kind}: {found}")

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@contextmanager
def live(server: RunningServer, query: dict[str, str] = QUERY, **headers: str) -> Iterator[Live]:
    request = Live(server, query, headers)
    try:
        yield request
    finally:
        request.close()


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "transcript.text.delta")


def data_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The data of all events in a complete answer, without comments."""
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def test_text_comes_while_the_body_is_sent(server) -> None:
    with live(server) as request:
        assert request.head()[0] == 200  # before any audio
        request.send(QUIET.tobytes() + PCM.tobytes() + QUIET.tobytes())
        first = request.until("transcript.text.segment")  # the body goes on
        request.send(QUIET.tobytes() + PCM.tobytes() + QUIET.tobytes())
        request.end()
        events = first + request.until("transcript.text.done")
    segments = [event for event in events if event["type"] == "transcript.text.segment"]
    assert [segment["id"] for segment in segments] == [0, 1] and all(segment["text"] for segment in segments)
    assert segments[0]["start"] == pytest.approx(0.7, abs=0.15) and segments[0]["end"] == pytest.approx(3.0, abs=0.2)
    assert events[-1]["text"] == text_of(events) and events[-1]["usage"] == {"type": "duration", "seconds": 7}
    assert events[-1]["text"].split() == " ".join(segment["text"] for segment in segments).split()


def test_a_turn_without_partial_text_is_that_of_the_recording(server) -> None:
    with live(server, QUERY | {"interval_ms": "0"}) as request:
        request.send(np.concatenate([QUIET, PCM, QUIET]).tobytes())
        request.end()
        request.head()
        events = request.until("transcript.text.done")
    (segment,) = (event for event in events if event["type"] == "transcript.text.segment")
    start, end = (round(RATE * segment[name]) for name in ("start", "end"))
    part = np.concatenate([QUIET, PCM, QUIET])[start:end]
    defaults = {"temperature_increment_on_fallback": "", "no_speech_threshold": ""}
    expected = transcript(server, wav(part / 32768, RATE), model="whisper", language="de", **defaults)
    assert events[-1]["text"] == expected["text"] and expected["text"]
    assert [event["type"].rpartition(".")[2] for event in events] == ["delta", "segment", "done"]


def test_a_file_with_a_length_and_two_channels(server) -> None:
    """A body may be a complete WAV file with two channels. Chunks of the file after the audio are ignored."""
    data = np.repeat(TURNS, 2).tobytes()
    form = struct.pack("<HHIIHH", 1, 2, RATE, 4 * RATE, 4, 16)
    file = b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(data)) + data
    file += b"LIST" + struct.pack("<I", 5000) + 5000 * b"\x7f"
    query = QUERY | {"interval_ms": "0"}
    answer = httpx.post(server.url + PATH, params=query, content=file, timeout=HANG_SECONDS)
    plain = httpx.post(server.url + PATH, params=query, content=TURNS.tobytes(), timeout=HANG_SECONDS)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    assert data_of(answer) == data_of(plain) and data_of(answer)[-1]["usage"]["seconds"] == 7


@pytest.mark.parametrize("kind", ["pcmu", "pcma"])
def test_telephone_audio(server, kind: str) -> None:
    audio = np.random.default_rng(1).integers(0, 256, 8_000, dtype=np.uint8).tobytes()
    answer = httpx.post(server.url + PATH, params=QUERY | {"format": kind}, content=audio, timeout=HANG_SECONDS)
    assert answer.status_code == 200 and '"seconds":1' in answer.text


def test_silence_has_no_text(server) -> None:
    answer = httpx.post(server.url + PATH, params=QUERY, content=bytes(20 * 2 * RATE), timeout=HANG_SECONDS)
    assert data_of(answer) == [
        {"type": "transcript.text.done", "text": "", "usage": {"type": "duration", "seconds": 20}}
    ]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"model": "story"}, "model"),
        ({"model": "nobody"}, "model"),
        ({"language": "xx"}, "language"),
        ({"rate": "7999"}, "rate"),
        ({"rate": "x"}, "rate"),
        ({"interval_ms": "-1"}, "interval_ms"),
        ({"format": "mp3"}, "format"),
        ({"more": "1"}, "more"),
    ],
    ids=str,
)
def test_a_refused_parameter_has_its_status(server, change: dict[str, str], param: str) -> None:
    with live(server, QUERY | change) as request:
        status, _ = request.head()
        request.end()
        assert status in (400, 404)
    refused = httpx.post(server.url + PATH, params=QUERY | change, content=b"", timeout=HANG_SECONDS)
    assert refused.json()["error"]["param"] == param


def test_a_compressed_body_and_other_formats_are_refused(server) -> None:
    refused = httpx.post(server.url + PATH, params=QUERY, content=b"x", headers={"content-encoding": "gzip"})
    assert refused.status_code == 415
    for body in (wav(SPEECH, RATE, bits=32, is_float=True), b"RIFF\0\0\0\0AVI " + bytes(100)):
        answer = httpx.post(server.url + PATH, params=QUERY, content=body, timeout=HANG_SECONDS)
        (event,) = data_of(answer)
        assert answer.status_code == 200 and "WAV" in event["error"]["message"]


def test_a_time_limit_ends_the_answer(server) -> None:
    with live(server, **{"X-Timeout-Ms": "300"}) as request:
        request.send(QUIET.tobytes())
        request.head()
        (event,) = request.events()
        assert event["error"]["code"] == "timeout"


def test_streams_of_one_key_are_bounded_and_a_client_that_leaves_makes_room(server) -> None:
    opened = [Live(server, QUERY, {}) for _ in range(16)]
    try:
        assert {request.head()[0] for request in opened} == {200}
        with live(server) as request:
            assert request.head()[0] == 429
    finally:
        for request in opened:
            request.close()

    def has_room() -> bool:
        with live(server) as request:
            return request.head()[0] == 200

    eventually(has_room)
    eventually(lambda: server.metric("triptych_streams_open") == 0)


def test_foreign_pages_are_refused(server) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        with live(server, **headers) as request:
            assert request.head()[0] == 403


def test_an_hour_of_audio_is_not_counted_as_a_body_in_memory(server) -> None:
    """Audio is dropped once it is decoded, so a body of 40 MB is accepted although a file may have at most 1 MiB."""
    answer = httpx.post(server.url + PATH, params=QUERY | {"rate": "48000"}, content=iter([bytes(1 << 20)] * 40))
    assert '"seconds":437' in answer.text


def test_keys_and_drain(oracles, tmp_path: Path) -> None:
    model = f"whisper={oracles['whisper'].directory}"
    (tmp_path / "keys").write_text("secret-key-0123456789\n")
    keys = ("--api-key-file", str(tmp_path / "keys"))
    with serving(tmp_path / "log", model, *keys, "--threads", "1") as server:
        with live(server) as request:
            assert request.head()[0] == 401
        with live(server, Authorization="Bearer secret-key-0123456789") as request:
            assert request.head()[0] == 200
            request.send(QUIET.tobytes() + PCM.tobytes())
            request.until("transcript.text.partial")
            server.process.send_signal(signal.SIGTERM)
            *events, last = request.events()
            assert "transcript.text.segment" in [event["type"] for event in events]
            assert last["error"]["code"] == "not_ready"
