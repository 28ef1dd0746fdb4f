"""`POST /v1/audio/transcriptions/live`: transcribe speech while it is spoken.

The request body is a stream of audio. The answer is a stream of events with text, and begins before the body ends. The
audio is divided into turns (stretches of speech) by its loudness. The turn in progress is decoded repeatedly. Words on
which two consecutive results agree are sent as a delta, and never change. The rest of a turn's text is sent at its end.
See docs/decisions/0170-a-plain-live-stream.md.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.types import Message

from server.api.bodies.sse import EventWriter, data_frame
from server.api.dialects.openai.audio.live_query import LiveQuery
from server.api.dialects.openai.audio.live_turn import TurnInProgress, transcribe_turn
from server.api.dialects.openai.audio.realtime_audio import AudioBuffer
from server.api.dialects.openai.common import stream_error
from server.api.entry.rejections import count_error
from server.api.state import State
from server.errors import (
    BodyTimeout,
    ClientGone,
    DeadlineExceeded,
    EngineFailure,
    InvalidRequest,
    NotReady,
    Overloaded,
    RequestError,
)
from server.log_format import fault_place
from server.operations.speech.transcribe_spec import TranscribeSpec
from server.text.speech.stable_text import is_spaced

log = logging.getLogger("triptych.live")

MAX_WAITING_TURNS = 2
"""Reading of the body pauses while this many complete turns wait for the model."""
MAX_WAITING_EVENTS = 256
MAX_STREAM_SECONDS = 3600.0
_HOP_BYTES = 1 << 15
"""Received audio is searched for turns in parts of this size, in bytes, so that other requests are not delayed."""


@dataclass(frozen=True)
class _SpokenTurn:
    """A complete turn.

    file: its audio as a WAV file. begun: the turn as it was in progress, with its start and its stable text.
    end: its end in milliseconds of the stream.
    """

    file: bytes
    begun: TurnInProgress
    end: int


@dataclass
class LiveStream:
    """One live request: reads its body, decodes turns, and creates the events of its answer.

    spec: specification of one turn, without its audio.
    deadline: time of `time.monotonic()` at which the answer ends; None for only the limit `MAX_STREAM_SECONDS`.
    gone: set when the client has disconnected.
    """

    request: Request
    state: State
    query: LiveQuery
    spec: TranscribeSpec
    deadline: float | None
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._source = self.query.source()
        self._buffer: AudioBuffer | None = None
        self._turns: deque[_SpokenTurn] = deque()
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._stopping = False
        self._failure: RequestError | None = None
        self._has_ended = False
        self._turn: TurnInProgress | None = None
        self._text = ""
        self._begins_turn = True
        self._num_segments = 0
        self._samples = 0

    def stop(self) -> None:
        """Stop reading, and end the stream with an error after the received audio, because the server shuts down."""
        self._stopping = True
        self._news.set()

    async def disconnected(self) -> Message:
        """ASGI `receive` for the response: waits for the disconnect. Messages with the body are read by `_read`."""
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def events(self, _: EventWriter) -> AsyncGenerator[bytes, None]:
        """Yield the events of the answer as bytes. An error becomes the last event. The writer argument is unused."""
        state, scope = self.state, self.request.scope
        state.runtime.metrics.streams_open.inc()
        reading = asyncio.create_task(self._read(), name="live body")
        decoding = asyncio.create_task(self._decode(), name="live turns")
        try:
            while (event := await self._events.get()) is not None:
                yield event
                if self._events.empty():
                    self._room.set()
            await decoding
        except ClientGone:
            raise
        except RequestError as error:
            count_error(error, state.runtime.metrics, scope)
            yield stream_error(error, scope["triptych.request_id"])
        finally:
            state.runtime.metrics.streams_open.dec()
            for task in (reading, decoding):
                task.cancel()
            await asyncio.gather(reading, decoding, return_exceptions=True)

    @property
    def _seconds(self) -> float:
        """Length of the received audio, in seconds."""
        return self._samples / self._source.rate

    # Reading: the body.

    async def _read(self) -> None:
        try:
            await self._read_body()
        except RequestError as error:
            self._failure = error
        except Exception as error:
            log.error("fault in a live stream, request %s:\n%s", self._request_id, fault_place(error))
            self._failure = EngineFailure("a fault in the server")
        self._has_ended = True
        self._news.set()
        while not self.gone.is_set():
            if (await self.request.receive())["type"] == "http.disconnect":
                self.gone.set()

    async def _read_body(self) -> None:
        limit = self.state.settings.audio_timeout_seconds
        more = True
        while more and not self._stopping:
            try:
                async with asyncio.timeout(limit):
                    message = await self.request.receive()
            except TimeoutError:
                raise BodyTimeout(f"no audio arrived within {limit:g} seconds") from None
            if message["type"] == "http.disconnect":
                self.gone.set()
                raise ClientGone("the client closed the connection")
            more = message.get("more_body", False)
            await self._append(message.get("body", b""))
            while len(self._turns) >= MAX_WAITING_TURNS or self._events.qsize() > MAX_WAITING_EVENTS:
                self._room.clear()
                await self._room.wait()

    async def _append(self, data: bytes) -> None:
        for first in range(0, len(data), _HOP_BYTES):
            pcm = self._source.add(data[first : first + _HOP_BYTES])
            if not pcm:
                continue
            if self._buffer is None:
                self._buffer = AudioBuffer(self.query.settings(self._source.rate))
            buffer = self._buffer
            held = sum(len(turn.file) for turn in self._turns) + len(buffer.pcm) + len(pcm)
            self.state.door.receive(self.request.scope, held)
            for found in buffer.append(pcm):
                if found.kind == "started":
                    self._turn = TurnInProgress(found.milliseconds)
                else:
                    self._end_turn(found.milliseconds)
            buffer.trim()
            self._samples += len(pcm) // 2
            self._news.set()
            await asyncio.sleep(0)

    def _end_turn(self, end: int | None = None) -> None:
        """Queue the turn in progress for decoding, if there is one.

        end: its end in milliseconds; None for all received audio.
        """
        if self._buffer is None or self._turn is None:
            return
        turn, self._turn = self._turn, None
        file = self._buffer.take(turn.start, end)
        self._turns.append(_SpokenTurn(file, turn, end or round(1000 * self._seconds)))

    # Decoding: the turn in progress, and complete turns.

    async def _decode(self) -> None:
        """Decode turns until the body has ended. Raises RequestError, such as DeadlineExceeded or EngineFailure."""
        try:
            async with asyncio.timeout_at(self._end_time()):
                await self._decode_all()
        except TimeoutError:
            if self.deadline is not None:
                raise DeadlineExceeded("the time limit of the request passed before the audio ended") from None
            raise InvalidRequest(f"a live stream ends after {MAX_STREAM_SECONDS:g} s") from None
        except RequestError:
            raise
        except Exception as error:
            log.error("fault in a live stream, request %s:\n%s", self._request_id, fault_place(error))
            raise EngineFailure("a fault in the server") from None
        finally:
            self._events.put_nowait(None)

    def _end_time(self) -> float:
        last = asyncio.get_running_loop().time() + MAX_STREAM_SECONDS
        if self.deadline is None:
            return last
        return min(last, asyncio.get_running_loop().time() + self.deadline - time.monotonic())

    async def _decode_all(self) -> None:
        while True:
            self._news.clear()
            if self._turns:
                await self._finish_turn(self._turns[0])
                self._turns.popleft()
                self._room.set()
            elif self._failure is not None:
                raise self._failure
            elif self._has_ended or self._stopping:
                if self._turn is None:
                    break
                self._end_turn()
            elif self._turn is not None and self._turn.is_due(1000 * self._seconds, self.query.interval_ms):
                await self._extend(self._turn)
            else:
                await self._news.wait()
        if self._stopping and not self._has_ended:
            raise NotReady("the server is shutting down", retry_after=5)
        usage = {"type": "duration", "seconds": math.ceil(self._seconds)}
        self._emit("transcript.text.done", text=self._text, usage=usage)

    async def _extend(self, turn: TurnInProgress) -> None:
        """Decode the turn in progress, and send its stable text.

        If the server is overloaded, nothing is sent; the text follows with a later call or at the end of the turn.
        """
        assert self._buffer is not None
        ended = turn.began_decoding(1000 * self._seconds)
        file = self._buffer.copy(turn.start)
        try:
            hypothesis = await self._transcribed(file, is_whole=False)
        except (Overloaded, DeadlineExceeded):
            return
        finally:
            ended()
        before, added = turn.stable.rest, turn.stable.add(hypothesis)
        self._add(added)
        if added or turn.stable.rest != before:
            self._emit("transcript.text.partial", text=turn.stable.rest)

    async def _finish_turn(self, turn: _SpokenTurn) -> None:
        stable = turn.begun.stable
        self._add(stable.finish(await self._transcribed(turn.file, is_whole=True)))
        self._begins_turn = True
        if stable.text:
            times = {"start": round(turn.begun.start / 1000, 3), "end": round(turn.end / 1000, 3)}
            self._emit("transcript.text.segment", id=self._num_segments, **times, text=stable.text)
            self._num_segments += 1

    def _add(self, text: str) -> None:
        """Send stable text as a delta. A space separates the texts of two turns, in languages that use spaces."""
        if not text:
            return
        if self._begins_turn and is_spaced(self._text, text):
            text = " " + text
        self._begins_turn = False
        self._text += text
        self._emit("transcript.text.delta", delta=text)

    async def _transcribed(self, file: bytes, is_whole: bool) -> str:
        """Transcribe a WAV file. is_whole: it contains a complete turn. Raises RequestError."""
        scope = self.request.scope
        return (await transcribe_turn(self.state, scope, self.spec, file, is_whole=is_whole)).text

    @property
    def _request_id(self) -> str:
        return str(self.request.scope["triptych.request_id"])

    def _emit(self, kind: str, **fields: Any) -> None:
        self._events.put_nowait(data_frame({"type": kind, **fields}))
