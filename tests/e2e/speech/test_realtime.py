"""`WS /v1/realtime` over a real connection: turns, events, texts, refusals, API keys, origins, and shutdown."""

from __future__ import annotations

import base64
import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.audio.wavs import wav
from tests.e2e.conftest import RunningServer, serving
from tests.e2e.speech.recordings import transcript
from tests.parity.speech import recording
from tests.waiting import HANG_SECONDS, eventually

RATE = 24_000
SPEECH = recording(1.5, seed=3, rate=RATE)
PCM = (np.clip(SPEECH, -1, 1) * 32767).astype("<i2")
COMPLETED = "conversation.item.input_audio_transcription.completed"
FAILED = "conversation.item.input_audio_transcription.failed"


def socket_to(host: str, port: int | None) -> socket.socket:
    return socket.create_connection((host, port), HANG_SECONDS)


@contextmanager
def session(server: RunningServer, query: str = "intent=transcription", **more: Any) -> Iterator[ClientConnection]:
    url = server.url.replace("http", "ws", 1)
    with connect(f"{url}/v1/realtime?{query}", open_timeout=HANG_SECONDS, proxy=None, **more) as live:
        yield live


def send(live: ClientConnection, kind: str, **fields: Any) -> None:
    live.send(json.dumps({"type": kind, **fields}))


def append(live: ClientConnection, audio: bytes, piece: int = 9_600) -> None:
    for at in range(0, len(audio), piece):
        send(live, "input_audio_buffer.append", audio=base64.b64encode(audio[at : at + piece]).decode())


def until(live: ClientConnection, kind: str) -> list[dict[str, Any]]:
    """Read events up to the first one whose type is `kind`. Returns them."""
    events = []
    while not events or events[-1]["type"] != kind:
        events.append(json.loads(live.recv(timeout=HANG_SECONDS)))
    return events


def update(live: ClientConnection, **given: Any) -> dict[str, Any]:
    send(live, "session.update", session={"type": "transcription", "audio": {"input": given}})
    return until(live, "session.updated")[-1]["session"]


WHISPER = {"transcription": {"model": "whisper", "language": "de"}}


def test_a_committed_turn_has_the_text_of_the_recording(server) -> None:
    defaults = {"temperature_increment_on_fallback": "", "no_speech_threshold": ""}
    expected = transcript(server, wav(PCM / 32768, RATE), model="whisper", language="de", **defaults)
    with session(server) as live:
        created = until(live, "session.created")[-1]["session"]
        assert created["type"] == "transcription" and created["audio"]["input"]["turn_detection"]["threshold"] == 0.5
        updated = update(live, **WHISPER, turn_detection=None)["audio"]["input"]
        assert updated["turn_detection"] is None and updated["transcription"]["model"] == "whisper"
        append(live, PCM.tobytes())
        send(live, "input_audio_buffer.commit")
        events = until(live, COMPLETED)
        send(live, "input_audio_buffer.commit", event_id="mine")
        refused = until(live, "error")[-1]["error"]
        send(live, "input_audio_buffer.clear")
        until(live, "input_audio_buffer.cleared")
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["input_audio_buffer.committed", "conversation.item.added", "conversation.item.done"]
    assert events[-1]["transcript"] == expected["text"] and events[-1]["usage"] == {"type": "duration", "seconds": 2}
    deltas = "".join(event["delta"] for event in events if event["type"].endswith(".delta"))
    assert deltas.strip() == expected["text"] and expected["text"]
    assert {event["item_id"] for event in events if "item_id" in event} == {events[0]["item_id"]}
    assert (refused["code"], refused["event_id"]) == ("input_audio_buffer_commit_empty", "mine")


def test_server_vad_finds_the_turns(server) -> None:
    quiet = np.zeros(RATE, dtype="<i2")
    with session(server) as live:
        update(live, **WHISPER)
        for _ in range(2):
            append(live, quiet.tobytes() + PCM.tobytes() + quiet.tobytes())
        first, second = until(live, COMPLETED), until(live, COMPLETED)
    events = first + second
    items = [event["item_id"] for event in events if event["type"] == "input_audio_buffer.speech_started"]
    committed = [event for event in events if event["type"] == "input_audio_buffer.committed"]
    assert [event["item_id"] for event in committed] == items and len(set(items)) == 2
    assert [event["previous_item_id"] for event in committed] == [None, items[0]]
    starts = [event["audio_start_ms"] for event in events if event["type"].endswith("speech_started")]
    ends = [event["audio_end_ms"] for event in events if event["type"].endswith("speech_stopped")]
    assert starts == [pytest.approx(700, abs=150), pytest.approx(4200, abs=150)]
    assert ends == [pytest.approx(3000, abs=200), pytest.approx(6500, abs=200)]


@pytest.mark.parametrize("name", ["g711_ulaw", "g711_alaw"])
def test_telephone_audio_and_the_events_of_the_beta(server, name: str) -> None:
    given = {"input_audio_format": name, "input_audio_transcription": WHISPER["transcription"], "turn_detection": None}
    with session(server) as live:
        send(live, "transcription_session.update", session=given)
        updated = until(live, "transcription_session.updated")[-1]["session"]
        assert updated["input_audio_format"] == name
        append(live, np.random.default_rng(1).integers(0, 256, 8_000, dtype=np.uint8).tobytes())
        send(live, "input_audio_buffer.commit")
        events = until(live, COMPLETED)
    assert "conversation.item.created" in [event["type"] for event in events] and events[-1]["usage"]["seconds"] == 1


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("{", None),
        ({"type": "response.create"}, "type"),
        ({"type": "session.update", "session": {"type": "realtime"}}, "session.type"),
        ({"type": "input_audio_buffer.append", "audio": "?"}, "audio"),
        ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "audio"),
        ({"type": "input_audio_buffer.commit", "more": 1}, "more"),
    ],
)
def test_a_refused_event_leaves_the_session_open(server, message: Any, param: str | None) -> None:
    with session(server) as live:
        live.send(message if isinstance(message, str) else json.dumps(message))
        error = until(live, "error")[-1]["error"]
        assert error["type"] == "invalid_request_error" and (error["param"] or "").endswith(param or "")
        update(live, **WHISPER)


def test_an_unknown_model_and_a_failed_turn(server) -> None:
    with session(server) as live:
        given = {"transcription": {"model": "story"}}
        send(live, "session.update", session={"type": "transcription", "audio": {"input": given}})
        assert until(live, "error")[-1]["error"]["param"] == "model"
        update(live, transcription={"model": "whisper", "language": "xx"}, turn_detection=None)
        append(live, PCM.tobytes())
        send(live, "input_audio_buffer.commit")
        assert until(live, FAILED)[-1]["error"]["param"] == "language"
        update(live, **WHISPER)
        append(live, PCM.tobytes())
        send(live, "input_audio_buffer.commit")
        until(live, COMPLETED)


def test_a_buffer_without_turns_is_bounded(server) -> None:
    with session(server) as live:
        update(live, **WHISPER, turn_detection=None)
        append(live, bytes(2 * RATE * 121), piece=1 << 20)
        assert "120 s" in until(live, "error")[-1]["error"]["message"]


def test_a_message_above_the_limit_closes_the_connection(server) -> None:
    with session(server) as live, pytest.raises(ConnectionClosed):
        live.send("x" * ((4 << 20) + 1))
        while True:
            live.recv(timeout=HANG_SECONDS)


def test_connections_of_one_key_are_bounded_and_counted(server) -> None:
    opened = []
    try:
        for _ in range(16):
            context = session(server)
            context.__enter__()
            opened.append(context)
        with pytest.raises(InvalidStatus) as refused, session(server):
            pass
        assert refused.value.response.status_code == 429
        assert json.loads(refused.value.response.body)["error"]["message"]
    finally:
        for context in opened:
            context.__exit__(None, None, None)
    eventually(lambda: server.metric("triptych_requests_total", route="/v1/realtime", status="101") >= 16)


def test_foreign_pages_are_refused(server) -> None:
    address = httpx.URL(server.url)
    with pytest.raises(InvalidStatus) as foreign_host, socket_to(address.host, address.port) as raw:
        connect("ws://evil.example/v1/realtime", sock=raw, open_timeout=HANG_SECONDS, proxy=None)
    with pytest.raises(InvalidStatus) as foreign_origin, session(server, origin="http://evil.example"):
        pass
    assert foreign_host.value.response.status_code == foreign_origin.value.response.status_code == 403
    with session(server, origin=server.url) as live:
        until(live, "session.created")


def test_the_client_of_openai(server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    with client.realtime.connect(model="whisper") as connection:
        assert connection.recv().type == "session.created"
        connection.session.update(
            session={"type": "transcription", "audio": {"input": {**WHISPER, "turn_detection": None}}}
        )
        assert connection.recv().type == "session.updated"
        connection.input_audio_buffer.append(audio=base64.b64encode(PCM.tobytes()).decode())
        connection.input_audio_buffer.commit()
        for event in connection:
            if event.type == COMPLETED:
                assert event.transcript
                break


def test_keys_and_drain(oracles, tmp_path: Path) -> None:
    model = f"whisper={oracles['whisper'].directory}"
    (tmp_path / "keys").write_text("secret-key-0123456789\n")
    keys = ("--api-key-file", str(tmp_path / "keys"))
    with serving(tmp_path / "log", model, *keys, "--threads", "1") as server:
        for more in ({}, {"subprotocols": ["realtime", "openai-insecure-api-key.wrong"]}):
            with pytest.raises(InvalidStatus) as refused, session(server, **more):
                pass
            assert refused.value.response.status_code == 401
        with session(server, additional_headers={"Authorization": "Bearer secret-key-0123456789"}) as live:
            until(live, "session.created")
        names = ["realtime", "openai-insecure-api-key.secret-key-0123456789"]
        with session(server, subprotocols=names) as live:
            assert live.subprotocol == "realtime"
            update(live, **WHISPER, turn_detection=None)
            append(live, PCM.tobytes())
            send(live, "input_audio_buffer.commit")
            until(live, "input_audio_buffer.committed")
            server.process.send_signal(signal.SIGTERM)
            events = until(live, "error")
            assert COMPLETED in [event["type"] for event in events] and events[-1]["error"]["code"] == "not_ready"
            with pytest.raises(ConnectionClosed):
                live.recv(timeout=HANG_SECONDS)
