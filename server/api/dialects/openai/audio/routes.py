"""The audio routes of the OpenAI dialect: a recording in a form, its text as JSON, subtitles or a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import Response

from server.api.bodies.form import read_form
from server.api.dialects.openai.audio.answer import TranscriptionAnswer, render, stream
from server.api.dialects.openai.audio.form import LISTS, TranscriptionForm, TranslationForm
from server.api.dialects.openai.common import ERRORS
from server.api.fields.ignored_parameters import ignored_parameters
from server.api.routes.route import Route, call_headers, leaving_on_disconnect
from server.api.state import State, of
from server.errors import Overloaded
from server.ipc.wire.time_limits import TimeLimits
from server.limits.refusals import RECORDINGS
from server.operations.speech.recording_file import RecordingFile
from server.operations.speech.transcribe import transcribe
from server.operations.speech.transcribe_spec import TranscribeSpec, Transcript


@dataclass(frozen=True, kw_only=True)
class AudioRoute(Route[TranslationForm, TranscribeSpec, Transcript]):
    """A route whose body is a form with a recording. The number of recordings in memory is limited."""

    media_type: ClassVar[str] = "multipart/form-data"

    async def respond(self, request: Request) -> Response:
        state = of(request)
        if state.recordings >= state.settings.max_recordings:
            raise Overloaded(
                f"{state.recordings:,} audio requests are in progress",
                RECORDINGS.refusal(f"{state.settings.max_recordings:,}"),
                retry_after=1,
            )
        state.recordings += 1
        held = _Held(state)
        try:
            response = await self._respond(request, state, held)
        except BaseException:
            held.release()
            raise
        if not held.is_streaming:
            held.release()
        return response

    async def _respond(self, request: Request, state: State, held: _Held) -> Response:
        settings = state.settings
        length = request.headers.get("content-length", "")
        size = min(int(length[:20]), settings.max_audio_bytes) if length.isdigit() else settings.max_audio_bytes
        await state.door.wait_for_body(
            request.scope, size, TimeLimits(state.deadline(request, None), settings.queue_timeout_seconds)
        )
        form, file, _ = await read_form(
            request, self.body, LISTS, settings.max_audio_bytes, settings.audio_timeout_seconds
        )
        call = self.call(request, state, form)
        with_logprobs = isinstance(form, TranscriptionForm) and bool(form.include)
        try:
            call.ignore(ignored_parameters(form))
            recording = RecordingFile(file, lambda: state.door.drop_body(request.scope))
            del file
            spec = self.with_default_model(state, form.spec(recording, settings.max_audio_seconds))
            if form.stream:
                async with leaving_on_disconnect(request, call):
                    response = await stream(
                        await self.prepare(state, call, spec, is_stream=True),
                        lambda emit: transcribe(state.runtime, call, spec, emit),
                        call,
                        state.runtime.metrics,
                        request.scope,
                        with_logprobs,
                    )
                held.is_streaming = True
                call.on_close(held.release)
                response.headers.update(call_headers(call))
                return response
            with call:
                async with leaving_on_disconnect(request, call):
                    await state.runtime.prepare(call, self.operation, spec)
                    transcript = await self.run(state.runtime, call, spec)
        except BaseException:
            call.close()
            raise
        granularities = form.timestamp_granularities if isinstance(form, TranscriptionForm) else None
        answer = render(form, spec.task, transcript, granularities, with_logprobs)
        answer.headers.update(call_headers(call))
        return answer


class _Held:
    """The place of one recording among those in memory. is_streaming: the place is held until the stream ends."""

    def __init__(self, state: State) -> None:
        self._state: State | None = state
        self.is_streaming = False

    def release(self) -> None:
        """Make room for another recording. A second call does nothing."""
        state, self._state = self._state, None
        if state is not None:
            state.recordings -= 1


_EXAMPLES: Mapping[str, tuple[Mapping[str, Any], Any]] = {
    "transcriptions": (
        {"file": "(the bytes of an audio file)", "language": "en", "response_format": "verbose_json"},
        {
            "text": "The garden is small.",
            "usage": {"type": "duration", "seconds": 3},
            "task": "transcribe",
            "language": "english",
            "duration": 2.41,
            "segments": [
                {
                    "id": 0,
                    "seek": 0,
                    "start": 0.0,
                    "end": 2.2,
                    "text": " The garden is small.",
                    "tokens": [50364, 440, 5431, 307, 1359, 13, 50474],
                    "temperature": 0.0,
                    "avg_logprob": -0.21,
                    "compression_ratio": 0.72,
                    "no_speech_prob": 0.01,
                }
            ],
        },
    ),
    "translations": (
        {"file": "(the bytes of an audio file)"},
        {"text": "The garden is small.", "usage": {"type": "duration", "seconds": 3}},
    ),
}

ROUTES: tuple[AudioRoute, ...] = (
    AudioRoute(
        path="/v1/audio/transcriptions",
        operation="transcribe",
        name="transcriptions",
        description="The text of a recording, in the language that is spoken. `stream` sends server-sent events.",
        body=TranscriptionForm,
        answer=TranscriptionAnswer,
        example=_EXAMPLES["transcriptions"],
        run=transcribe,
        errors=ERRORS,
    ),
    AudioRoute(
        path="/v1/audio/translations",
        operation="translate_speech",
        name="translations",
        description="The text of a recording, translated to English. `stream` sends server-sent events.",
        body=TranslationForm,
        answer=TranscriptionAnswer,
        example=_EXAMPLES["translations"],
        run=transcribe,
        errors=ERRORS,
    ),
)
