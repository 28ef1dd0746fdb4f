"""The audio routes of the OpenAI dialect: they take a recording in a form, and return JSON, subtitles or a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from server.api.dialects.openai.audio.answer import TranscriptionAnswer, render, stream
from server.api.dialects.openai.audio.form import LISTS, TranscriptionForm, TranslationForm
from server.api.dialects.openai.common import ERRORS
from server.api.routes.recording_route import HeldRecording, RecordingRoute
from server.api.routes.route import call_headers, leaving_on_disconnect
from server.api.state import State
from server.ipc.client.call import Call
from server.operations.speech.transcribe import transcribe
from server.operations.speech.transcribe_spec import TranscribeSpec, Transcript

FormT = TypeVar("FormT", bound=TranslationForm)


@dataclass(frozen=True, kw_only=True)
class AudioRoute(RecordingRoute[FormT], Generic[FormT]):
    """A route for recordings that sends the text as a stream of events if the form has `stream`."""

    async def transcribe_and_answer(
        self,
        request: Request,
        state: State,
        call: Call,
        form: FormT,
        spec: TranscribeSpec,
        held: HeldRecording,
    ) -> Response:
        if not form.stream:
            return await super().transcribe_and_answer(request, state, call, form, spec, held)
        with leaving_on_disconnect(request, call):
            response = await stream(
                await self.prepare(state, call, spec, is_stream=True),
                lambda emit: transcribe(state.runtime, call, spec, emit),
                call,
                state.runtime.metrics,
                request.scope,
                _shows_logprobs(form),
            )
        held.is_streaming = True
        call.on_close(held.release)
        response.headers.update(call_headers(call))
        return response


def _shows_logprobs(form: TranslationForm) -> bool:
    return isinstance(form, TranscriptionForm) and bool(form.include)


def _transcribed(form: TranscriptionForm, transcript: Transcript) -> Response:
    return render(form, "transcribe", transcript, form.timestamp_granularities, _shows_logprobs(form))


def _translated(form: TranslationForm, transcript: Transcript) -> Response:
    return render(form, "translate", transcript, None, False)


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

ROUTES: tuple[AudioRoute[Any], ...] = (
    AudioRoute(
        path="/v1/audio/transcriptions",
        operation="transcribe",
        name="transcriptions",
        description="The text of a recording, in the language that is spoken. `stream` sends server-sent events.",
        body=TranscriptionForm,
        answer=TranscriptionAnswer,
        example=_EXAMPLES["transcriptions"],
        parse=TranscriptionForm.spec,
        run=transcribe,
        render=_transcribed,
        lists=LISTS,
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
        parse=TranslationForm.spec,
        run=transcribe,
        render=_translated,
        lists=LISTS,
        errors=ERRORS,
    ),
)
