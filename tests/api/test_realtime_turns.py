"""`WS /v1/realtime` sends the text of a turn while it is still spoken. The transcriptions are scripted."""

from __future__ import annotations

import asyncio
import base64
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from server.api.dialects.openai.audio import live_turn, realtime
from server.api.dialects.openai.audio.live_turn import TurnInProgress
from server.errors import EngineFailure, InvalidRequest
from server.operations.speech.transcribe_spec import Transcript

RATE = 24_000
SPEECH = (10_000 * np.sin(np.arange(RATE) * 0.1)).astype("<i2").tobytes()
QUIET = bytes(2 * RATE)
DELTA = "conversation.item.input_audio_transcription.delta"
COMPLETED = "conversation.item.input_audio_transcription.completed"


class Socket:
    """A WebSocket connection in which the test acts as the client."""

    def __init__(self, **query: str) -> None:
        self.headers: dict[str, str] = {}
        self.query_params = query
        self.scope: dict[str, Any] = {"subprotocols": [], "triptych.request_id": "r"}
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.events: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        return await self.incoming.get()

    async def send_text(self, text: str) -> None:
        self.events.append(json.loads(text))

    async def close(self, code: int) -> None:
        pass

    def send(self, kind: str, **fields: Any) -> None:
        self.incoming.put_nowait({"type": "websocket.receive", "text": json.dumps({"type": kind, **fields})})

    def append(self, audio: bytes) -> None:
        self.send("input_audio_buffer.append", audio=base64.b64encode(audio).decode())

    async def until(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait for `count` events of the type `kind`. Returns all events so far."""
        async with asyncio.timeout(10):
            while sum(event["type"] == kind for event in self.events) < count:
                await asyncio.sleep(0.001)
        return self.events

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]


class Model:
    """A scripted speech model. It replaces `transcribe_turn`.

    parts: results for turns that are still spoken, in order; an exception is raised. whole: text of a complete turn.
    calls: for each transcription, the length of its audio in seconds, and whether the turn is complete.
    gate: event for which every transcription waits.
    """

    def __init__(self, parts: list[str | Exception], whole: str) -> None:
        self.parts, self.whole, self.calls = parts, whole, list[tuple[float, bool]]()
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, state, scope, spec, file: bytes, *, is_whole: bool, emit=None) -> Transcript:
        self.calls.append((round((len(file) - 44) / 2 / RATE, 1), is_whole))
        await self.gate.wait()
        said = self.whole if is_whole else self.parts.pop(0) if self.parts else ""
        if isinstance(said, Exception):
            raise said
        if emit is not None:
            emit(said)
        return Transcript(said, "en", 1.0, [])


def state() -> Any:
    labels = SimpleNamespace(inc=lambda: None)
    metrics = SimpleNamespace(rejected=SimpleNamespace(labels=lambda reason: labels))
    runtime = SimpleNamespace(metrics=metrics, names=SimpleNamespace(defaults={}), registry=object())
    door = SimpleNamespace(receive=lambda scope, size: None)
    return SimpleNamespace(runtime=runtime, door=door, settings=SimpleNamespace(max_audio_seconds=60.0))


async def talk(socket: Socket, seconds: int, model: Model) -> None:
    """Send `seconds` pieces of one second of speech. Waits after each piece until the model has been called."""
    for _ in range(seconds):
        before = len(model.calls)
        socket.append(SPEECH)
        async with asyncio.timeout(10):
            while len(model.calls) == before or not socket.incoming.empty():
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)


def run(monkeypatch: pytest.MonkeyPatch, model: Model, client: Any, **query: str) -> Socket:
    """Run a session and return its socket.

    client: coroutine function that gets the socket and acts as the client. The connection closes when it returns.
    """
    monkeypatch.setattr(realtime, "transcribe_turn", model)

    async def main() -> Socket:
        socket = Socket(**query)
        session = asyncio.create_task(realtime.LiveSession(socket, state()).run())
        await client(socket)
        socket.incoming.put_nowait({"type": "websocket.disconnect"})
        await session
        return socket

    return asyncio.run(main())


def text_of(socket: Socket) -> str:
    return "".join(event["delta"] for event in socket.events if event["type"] == DELTA)


def test_agreed_words_are_sent_while_a_turn_is_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(["The garden", "The garden is", "The garden is small but"], "The garden is small, but old.")

    async def client(socket: Socket) -> None:
        await talk(socket, 3, model)
        socket.append(QUIET)
        await socket.until(COMPLETED)

    socket = run(monkeypatch, model, client)
    started = socket.kinds.index("input_audio_buffer.speech_started")
    stopped = socket.kinds.index("input_audio_buffer.speech_stopped")
    early = [event["delta"] for event in socket.events[started:stopped] if event["type"] == DELTA]
    assert early == ["The garden", " is"]
    done = socket.events[socket.kinds.index(COMPLETED)]
    assert done["transcript"] == text_of(socket) == "The garden is small, but old."
    assert {event["item_id"] for event in socket.events if event["type"] == DELTA} == {done["item_id"]}
    assert socket.events[started]["item_id"] == done["item_id"]
    assert [whole for _, whole in model.calls] == [False, False, False, True]
    assert [length for length, _ in model.calls[:3]] == [1.0, 2.0, 3.0]


def test_text_that_was_sent_is_never_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(["The guard", "The guard is", "The garden is small"], "The garden is small.")

    async def client(socket: Socket) -> None:
        await talk(socket, 3, model)
        socket.append(QUIET)
        await socket.until(COMPLETED)

    socket = run(monkeypatch, model, client)
    assert socket.events[socket.kinds.index(COMPLETED)]["transcript"] == text_of(socket) == "The guard is small."


def test_a_second_turn_begins_without_the_text_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(["One", "One two", "Three", "Three four"], "One two.")

    async def client(socket: Socket) -> None:
        await talk(socket, 2, model)
        socket.append(QUIET)
        await socket.until(COMPLETED)
        model.whole = "Three four."
        await talk(socket, 2, model)
        socket.append(QUIET)
        await socket.until(COMPLETED, 2)

    socket = run(monkeypatch, model, client)
    done = [event for event in socket.events if event["type"] == COMPLETED]
    assert [event["transcript"] for event in done] == ["One two.", "Three four."]
    for event in done:
        own = [each["delta"] for each in socket.events if each["type"] == DELTA and each["item_id"] == event["item_id"]]
        assert "".join(own) == event["transcript"] and len(own) == 2


def test_a_turn_that_ends_while_a_part_is_decoded_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(["One", "One two"], "One two three.")

    async def client(socket: Socket) -> None:
        await talk(socket, 1, model)
        model.gate.clear()
        await talk(socket, 1, model)
        socket.append(QUIET)
        await socket.until("input_audio_buffer.committed")
        model.gate.set()
        await socket.until(COMPLETED)

    socket = run(monkeypatch, model, client)
    assert [event["delta"] for event in socket.events if event["type"] == DELTA] == ["One", " two three."]
    assert socket.events[socket.kinds.index(COMPLETED)]["transcript"] == "One two three."


def test_cleared_audio_has_no_further_text(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(["One", "One two"], "One two three.")

    async def client(socket: Socket) -> None:
        await talk(socket, 1, model)
        model.gate.clear()
        await talk(socket, 1, model)
        socket.send("input_audio_buffer.clear")
        await socket.until("input_audio_buffer.cleared")
        model.gate.set()
        await asyncio.sleep(0.05)

    socket = run(monkeypatch, model, client)
    assert DELTA not in socket.kinds and [whole for _, whole in model.calls] == [False, False]


def test_a_part_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(["One", EngineFailure("a fault"), RuntimeError("a bug"), "One two"], "One two three.")

    async def client(socket: Socket) -> None:
        await talk(socket, 4, model)
        socket.append(QUIET)
        await socket.until(COMPLETED)

    socket = run(monkeypatch, model, client)
    assert text_of(socket) == "One two three." and "error" not in socket.kinds


@pytest.mark.parametrize("turn_detection", [{"type": "server_vad"}, None])
def test_a_turn_is_decoded_once_without_an_interval_or_without_turn_detection(
    monkeypatch: pytest.MonkeyPatch, turn_detection: dict[str, str] | None
) -> None:
    model = Model([], "One.")

    async def client(socket: Socket) -> None:
        given = {"turn_detection": turn_detection}
        socket.send("session.update", session={"type": "transcription", "audio": {"input": given}})
        for piece in (SPEECH, SPEECH, QUIET):
            socket.append(piece)
        if turn_detection is None:
            socket.send("input_audio_buffer.commit")
        await socket.until(COMPLETED)

    socket = run(monkeypatch, model, client, interval_ms="0" if turn_detection else "500")
    assert [whole for _, whole in model.calls] == [True] and text_of(socket) == "One."


@pytest.mark.parametrize("value", ["-1", "10001", "x", "1.5"])
def test_an_invalid_interval_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        realtime.LiveSession(Socket(interval_ms=value), state())
    assert refused.value.param == "interval_ms"


def test_parts_take_at_most_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(live_turn.time, "monotonic", lambda: now[0])
    turn = TurnInProgress(500)
    assert not turn.is_due(1499, 1000) and turn.is_due(1500, 1000) and not turn.is_due(1500, 0)
    ended = turn.began_decoding(1500)
    now[0] += 3
    ended()
    assert not turn.is_due(7499, 1000) and turn.is_due(7500, 1000)
