"""A turn of live speech: its text so far while it is spoken, and the transcription of its audio."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from starlette.types import Scope

from server.api.entry.scope import CACHE_SALT, CALL, KEY_LIMITS, OPERATION
from server.api.routes.recording_route import HeldRecording
from server.api.state import State
from server.errors import ClientGone, EngineFailure
from server.ipc.client.call import Call
from server.operations.speech.recording_file import RecordingFile
from server.operations.speech.transcribe import transcribe
from server.operations.speech.transcribe_spec import TranscribeSpec, Transcript
from server.text.speech.stable_text import StableText

DEFAULT_INTERVAL_MS = 1_000
MAX_INTERVAL_MS = 10_000
_MIN_PAUSE = 2.0
"""Decodings of parts of a turn begin at intervals of at least this many times the duration of the last one, so that
they take at most half of the time."""


@dataclass
class TurnInProgress:
    """A turn that is being spoken.

    start: its beginning, in milliseconds of the stream. item_id: id of its conversation item, if it has one.
    stable: the text on which consecutive decodings agree.
    """

    start: int
    item_id: str = ""
    stable: StableText = field(default_factory=StableText)

    def __post_init__(self) -> None:
        self._decoded_until = float(self.start)
        self._decoding_ms = 0.0

    def is_due(self, received_ms: float, interval_ms: int) -> bool:
        """Whether the turn has enough new audio to be decoded again.

        received_ms: end of the received audio in milliseconds of the stream.
        interval_ms: new audio after which a turn is decoded again; 0 for never.
        """
        pause = max(interval_ms, _MIN_PAUSE * self._decoding_ms)
        return interval_ms > 0 and received_ms >= self._decoded_until + pause

    def began_decoding(self, received_ms: float) -> Callable[[], None]:
        """Record that a decoding of the turn up to `received_ms` has begun.

        Returns a function to call when it has ended.
        """
        self._decoded_until = received_ms
        began = time.monotonic()

        def ended() -> None:
            self._decoding_ms = 1000 * (time.monotonic() - began)

        return ended


async def transcribe_turn(
    state: State,
    scope: Scope,
    spec: TranscribeSpec,
    file: bytes,
    *,
    is_whole: bool,
    emit: Callable[[str], None] | None = None,
) -> Transcript:
    """Transcribe the audio of a turn, or of its part so far, as a call of its own.

    scope: ASGI scope of the connection. spec: specification of a turn, without its audio. file: the audio as WAV.
    is_whole: it contains a complete turn; otherwise it is decoded once, at temperature 0.
    emit: called with each part of the text as soon as it is final.
    Raises RequestError.
    """
    held = HeldRecording(state)
    try:
        now, settings = time.monotonic(), state.settings
        limit = settings.default_timeout_seconds
        deadline = None if limit is None else now + limit
        key, queue_seconds = scope.get(KEY_LIMITS), settings.queue_timeout_seconds
        call = Call(state.runtime.client, deadline, now, scope[CACHE_SALT], key, queue_seconds)
        scope[CALL], scope[OPERATION] = call, "transcribe"
        spec = replace(spec, file=RecordingFile(file), temperatures=spec.temperatures if is_whole else (0.0,))
        with call:
            await state.runtime.prepare(call, "transcribe", spec)
            return await transcribe(state.runtime, call, spec, emit)
    except ClientGone:
        raise EngineFailure("the transcription was ended") from None
    finally:
        held.release()
