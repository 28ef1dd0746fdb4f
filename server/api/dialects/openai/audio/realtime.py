"""`WS /v1/realtime`: live transcription with the events of OpenAI's Realtime API.

The client appends audio. A turn ends when the server detects silence, or when the client commits it. Each turn is
transcribed as a separate recording, one after another, so that the texts keep their order. A turn that the server
detects is also decoded while it is spoken, and the words on which two decodings agree are sent. While
`MAX_WAITING_TURNS` turns wait, the connection is not read, and TCP slows the client down. See
docs/decisions/0159-live-transcription.md and docs/decisions/0188-no-sentence-is-lost.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from server.api.dialects.openai.audio.live_turn import TurnInProgress, transcribe_turn
from server.api.dialects.openai.audio.realtime_audio import AudioBuffer, decode_audio
from server.api.dialects.openai.audio.realtime_body import (
    Append,
    Clear,
    ClientEvent,
    Commit,
    LiveSettings,
    OldUpdate,
    Transcription,
    Update,
    parse_event,
    parse_query,
)
from server.api.dialects.openai.common import ERRORS, new_id
from server.api.entry.rejections import count_error
from server.api.entry.scope import KEY_LIMITS
from server.api.state import State
from server.errors import EngineFailure, InvalidRequest, NotReady, Overloaded, RequestError
from server.log_format import fault_place
from server.operations.speech.recording_file import RecordingFile
from server.operations.speech.transcribe_spec import TranscribeSpec, Transcript
from server.system.loop_iterations import next_iteration
from server.text.speech.stable_text import StableText

log = logging.getLogger("triptych.live")

PATH = "/v1/realtime"
_DEFAULT_ROUTE = "/v1/audio/transcriptions"
"""The route whose default model is used for sessions that name no model."""
_TRANSCRIPTION = "conversation.item.input_audio_transcription"
MAX_WAITING_TURNS = 2
MAX_WAITING_EVENTS = 256
"""A slow client's messages are not read while more events than this wait to be sent to it."""
MAX_SESSION_SECONDS = 3600.0
_HOP_BYTES = 1 << 15
"""Received audio is searched for turns in pieces of this size, in bytes, so that other requests are not delayed."""


async def live(socket: WebSocket) -> None:
    """Serve one WebSocket connection until the client leaves, the server drains or `MAX_SESSION_SECONDS` have passed.

    If too many sessions are open, or the query is invalid, the handshake is answered with an HTTP error.
    """
    state: State = socket.app.state.triptych
    try:
        session = LiveSession(socket, state)
        with state.live.open(socket.scope.get(KEY_LIMITS), session.stop):
            await socket.accept(subprotocol="realtime" if "realtime" in socket.scope["subprotocols"] else None)
            await session.run()
    except (Overloaded, InvalidRequest) as error:
        count_error(error, state.runtime.metrics, socket.scope)
        body = orjson.dumps(ERRORS.render(error, socket.scope["triptych.request_id"]))
        headers = {"retry-after": str(error.retry_after)} if error.retry_after else {}
        await socket.send_denial_response(Response(body, error.status, headers, "application/json"))


@dataclass(frozen=True)
class _Turn:
    """A committed turn.

    item_id: id of its conversation item. file: its audio as a WAV file. transcription: settings for its transcription.
    stable: the text that was sent while the turn was spoken.
    """

    item_id: str
    file: bytes
    transcription: Transcription
    stable: StableText


class LiveSession:
    """One realtime connection: its settings and audio, and the tasks that read events, decode turns and send events."""

    def __init__(self, socket: WebSocket, state: State) -> None:
        self._socket, self._state = socket, state
        self._id = new_id("sess")
        self._is_old = socket.headers.get("openai-beta") == "realtime=v1" or any(
            name.startswith("openai-beta.realtime-v1") for name in socket.scope["subprotocols"]
        )
        query = parse_query(socket.query_params)
        model, self._interval_ms = query.model, query.interval_ms
        self._settings = LiveSettings(transcription=Transcription(model=model and model[:256]))
        self._buffer = AudioBuffer(self._settings)
        self._turns: asyncio.Queue[_Turn | None] = asyncio.Queue(MAX_WAITING_TURNS)
        self._events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._stopping = asyncio.Event()
        self._last_item: str | None = None
        self._turn_bytes = 0
        self._turn: TurnInProgress | None = None
        self._news = asyncio.Event()

    def stop(self) -> None:
        """End the session after the committed turns are decoded, because the server shuts down."""
        self._stopping.set()

    async def run(self) -> None:
        self._emit_session("created")
        writing = asyncio.create_task(self._write(), name="live events")
        decoding = asyncio.create_task(self._decode_all(), name="live turns")
        reading = asyncio.create_task(self._read_all(), name="live audio")
        stopping = asyncio.create_task(self._stopping.wait(), name="live stop")
        tasks = (writing, decoding, reading, stopping)
        try:
            await asyncio.wait(tasks, timeout=MAX_SESSION_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() or writing.done():  # the client has left
                return
            reading.cancel()
            if not decoding.done():
                # The queue may be full; the mark of its end follows the turns in it.
                marking = asyncio.create_task(self._enqueue(None), name="live end")
                await asyncio.wait({decoding, writing}, return_when=asyncio.FIRST_COMPLETED)
                marking.cancel()
            if self._stopping.is_set():
                self._emit_error(NotReady("the server is shutting down", retry_after=5))
            else:
                self._emit_error(InvalidRequest(f"a session ends after {MAX_SESSION_SECONDS:g} s"), "session_expired")
            self._events.put_nowait(None)
            await writing
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                await self._socket.close(1001)

    # Reading: client events.

    async def _read_all(self) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                message = await self._socket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                await next_iteration()  # thousands of small messages may be waiting
                await self._receive(message.get("text"))
                if self._events.qsize() > MAX_WAITING_EVENTS:
                    await self._events.join()

    async def _receive(self, text: str | None) -> None:
        """Handle one message of the client. A bad message is answered with an error event, and the session continues.

        text: None for a binary message, which is refused.
        """
        event: ClientEvent | None = None
        try:
            if text is None:
                raise InvalidRequest("send events as text; binary messages are not supported")
            event = parse_event(text)
            await self._handle(event)
        except RequestError as error:
            self._emit_error(error, event_id=None if event is None else event.event_id)

    async def _handle(self, event: ClientEvent) -> None:
        buffer = self._buffer
        if isinstance(event, Append):
            await next_iteration()  # parsing an event of 4 MB and decoding its audio take 20 ms each
            await self._append(decode_audio(event.audio))
        elif isinstance(event, Commit):
            if not buffer.pcm:
                raise _EmptyBuffer("the buffer has no audio to commit")
            buffer.end_turn()
            await self._commit(buffer.take)
        elif isinstance(event, Clear):
            buffer.clear()
            self._turn = None
            self._emit("input_audio_buffer.cleared")
        else:
            self._update(event)

    def _update(self, event: Update | OldUpdate) -> None:
        old, settings = self._settings, self._settings.updated(event)
        runtime = self._state.runtime
        if runtime.registry is None and settings.transcription.model is not None:
            runtime.candidates(settings.transcription.model, "transcribe")
        self._buffer.use(settings, settings.format == old.format, settings.turns == old.turns)
        if settings.turns != old.turns:
            self._turn = None
        self._settings = settings
        self._is_old = isinstance(event, OldUpdate)
        self._emit_session("updated")

    async def _append(self, data: bytes) -> None:
        buffer = self._buffer
        for first in range(0, len(data), _HOP_BYTES):
            self._state.door.receive(self._socket.scope, self._turn_bytes + len(buffer.pcm) + len(data))
            for found in buffer.append(data[first : first + _HOP_BYTES]):
                if found.kind == "started":
                    self._turn = TurnInProgress(found.milliseconds, buffer.item_id)
                    started = {"audio_start_ms": found.milliseconds, "item_id": buffer.item_id}
                    self._emit("input_audio_buffer.speech_started", **started)
                else:
                    item_id = buffer.item_id
                    self._emit("input_audio_buffer.speech_stopped", audio_end_ms=found.milliseconds, item_id=item_id)
                    start = None if self._turn is None else self._turn.start
                    await self._commit(partial(buffer.take, start, found.milliseconds))
            buffer.trim()
            self._news.set()
            await asyncio.sleep(0)

    async def _commit(self, take: Callable[[], bytes]) -> None:
        """Make the turn in progress a conversation item, and queue it for decoding.

        take: removes the audio of the turn from the buffer, and returns it as a WAV file.
        """
        item_id, file = self._buffer.item_id, take()
        turn, self._turn = self._turn, None
        previous, self._last_item = self._last_item, item_id
        self._emit("input_audio_buffer.committed", previous_item_id=previous, item_id=item_id)
        item = {
            "id": item_id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        for name in ("created",) if self._is_old else ("added", "done"):
            self._emit(f"conversation.item.{name}", previous_item_id=previous, item=item)
        self._turn_bytes += len(file)
        stable = StableText() if turn is None else turn.stable
        await self._enqueue(_Turn(item_id, file, self._settings.transcription, stable))

    async def _enqueue(self, turn: _Turn | None) -> None:
        await self._turns.put(turn)
        self._news.set()

    # Decoding: one turn after another, and the turn in progress.

    async def _decode_all(self) -> None:
        while True:
            self._news.clear()
            if not self._turns.empty():
                turn = self._turns.get_nowait()
                if turn is None:
                    return
                await self._complete(turn)
            elif self._turn is not None and self._turn.is_due(self._buffer.end, self._interval_ms):
                await self._extend(self._turn)
            else:
                await self._news.wait()

    async def _extend(self, turn: TurnInProgress) -> None:
        """Decode the turn in progress, and send its stable text. An error is reported when the turn is complete."""
        ended = turn.began_decoding(self._buffer.end)
        file = self._buffer.copy(turn.start)
        try:
            found = await self._transcribe(file, self._settings.transcription, is_whole=False)
        except RequestError:
            return
        except Exception as error:
            self._log_fault(error)
            return
        finally:
            ended()
        if self._is_open(turn):
            self._emit_delta(turn.item_id, turn.stable.add(found.text))

    def _is_open(self, turn: TurnInProgress) -> bool:
        """Whether a turn is in progress or waits for its complete decoding. Otherwise the client has dropped it."""
        return turn is self._turn or turn.item_id == self._last_item

    async def _complete(self, turn: _Turn) -> None:
        """Decode a committed turn, and send the rest of its text."""
        place = {"item_id": turn.item_id, "content_index": 0}
        # Without stable text, the parts of a long turn are sent as soon as they are final.
        has_text = bool(turn.stable.text)
        emit = None if has_text else lambda text: self._emit_delta(turn.item_id, text)
        try:
            found = await self._transcribe(turn.file, turn.transcription, is_whole=True, emit=emit)
        except RequestError as error:
            self._state.runtime.metrics.rejected.labels(error.reason).inc()
            self._emit(f"{_TRANSCRIPTION}.failed", **place, error=error_fields(error))
        except Exception as error:
            self._log_fault(error)
            self._emit(f"{_TRANSCRIPTION}.failed", **place, error=error_fields(EngineFailure("a fault in the server")))
        else:
            text = found.text
            if has_text:
                self._emit_delta(turn.item_id, turn.stable.finish(text))
                text = turn.stable.text
            usage = {"type": "duration", "seconds": math.ceil(found.seconds)}
            self._emit(f"{_TRANSCRIPTION}.completed", **place, transcript=text, usage=usage)
        self._turn_bytes -= len(turn.file)

    async def _transcribe(
        self, file: bytes, wished: Transcription, *, is_whole: bool, emit: Callable[[str], None] | None = None
    ) -> Transcript:
        """Transcribe a WAV file. The arguments are those of `transcribe_turn`. Raises RequestError."""
        state = self._state
        spec = TranscribeSpec(
            RecordingFile(b""),
            state.settings.max_audio_seconds,
            model=wished.model or state.runtime.names.defaults.get(_DEFAULT_ROUTE),
            language=wished.language or None,
            prompt=wished.prompt or "",
        )
        return await transcribe_turn(state, self._socket.scope, spec, file, is_whole=is_whole, emit=emit)

    def _log_fault(self, error: Exception) -> None:
        log.error("fault in %s, request %s:\n%s", PATH, self._socket.scope["triptych.request_id"], fault_place(error))

    # Writing: server events.

    def _emit(self, kind: str, **fields: Any) -> None:
        self._events.put_nowait({"type": kind, "event_id": new_id("event"), **fields})

    def _emit_delta(self, item_id: str, text: str) -> None:
        if text:
            self._emit(f"{_TRANSCRIPTION}.delta", item_id=item_id, content_index=0, delta=text)

    def _emit_session(self, change: str) -> None:
        prefix = "transcription_session" if self._is_old else "session"
        self._emit(f"{prefix}.{change}", session=self._settings.describe(self._id, self._is_old))

    def _emit_error(self, error: RequestError, code: str | None = None, event_id: str | None = None) -> None:
        self._state.runtime.metrics.rejected.labels(error.reason).inc()
        fields = error_fields(error)
        self._emit("error", error=fields | {"code": code or fields["code"], "event_id": event_id})

    async def _write(self) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            while (event := await self._events.get()) is not None:
                await self._socket.send_text(orjson.dumps(event).decode())
                self._events.task_done()


class _EmptyBuffer(InvalidRequest):
    code = "input_audio_buffer_commit_empty"


def error_fields(error: RequestError) -> dict[str, Any]:
    """The error of an event. An Overloaded error also has its `reason`, as in the body of a refused request."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    fields = {"type": kind, "code": error.code, "message": error.message, "param": error.param}
    return fields | {"type": error.kind, "reason": error.reason} if isinstance(error, Overloaded) else fields
