"""The audio routes of the OpenAI dialect: a recording in a form, its text as JSON or subtitles."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from server.api.dialects.openai.common import ERRORS
from server.api.error_shape import AnswerBody
from server.api.fields import Finite, Language, ModelName
from server.api.form import read_form
from server.api.json_answer import json_response
from server.api.route import Route, leaving_on_disconnect
from server.api.state import of
from server.errors import InvalidRequest, Overloaded
from server.operations.transcribe import TranscribeSpec, Transcript, transcribe
from server.text.speech import SpeechTask, language_name
from server.text.subtitles import SubtitleLine, srt, vtt

_LISTS = frozenset({"timestamp_granularities"})
_TIMED = frozenset({"verbose_json", "srt", "vtt"})


class TranslationForm(BaseModel):
    """Fields of a form with a recording. Form values are text, so numbers are converted."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: ModelName = None
    prompt: Annotated[str | None, Field(max_length=16_384, description="text before the recording")] = None
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    temperature: Annotated[Finite | None, Field(ge=0, le=1, description="0, the default: the likeliest text")] = None
    stream: bool | None = None
    seed: Annotated[int | None, Field(ge=0, lt=1 << 64)] = None
    num_beams: Annotated[int | None, Field(ge=1, le=16)] = None
    timeout_ms: Annotated[int | None, Field(ge=1, description="milliseconds; default 60000")] = None

    def spec(self, wav: bytes, max_seconds: float) -> TranscribeSpec:
        """Convert the form to a specification. Raises InvalidRequest.

        wav: the bytes of the part `file`. max_seconds: longest recording that the server accepts.
        """
        return self._spec(wav, max_seconds, "translate", None)

    def _spec(self, wav: bytes, max_seconds: float, task: SpeechTask, language: str | None) -> TranscribeSpec:
        if self.stream:
            raise InvalidRequest("`stream` is not supported for recordings", "stream")
        return TranscribeSpec(
            wav,
            max_seconds,
            task,
            self.model,
            language,
            self.prompt or "",
            self.temperature or 0.0,
            self.num_beams,
            self.seed,
            with_times=self.response_format in _TIMED,
            with_logprobs=self.response_format == "verbose_json",
        )


class TranscriptionForm(TranslationForm):
    language: Annotated[Language | None, Field(description="code or English name; default: detected")] = None
    timestamp_granularities: list[Literal["segment", "word"]] | None = None

    def spec(self, wav: bytes, max_seconds: float) -> TranscribeSpec:
        if self.timestamp_granularities and "word" in self.timestamp_granularities:
            raise InvalidRequest(
                "`timestamp_granularities`: word is not supported, only segment", "timestamp_granularities"
            )
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise InvalidRequest(
                "`timestamp_granularities` requires `response_format` verbose_json", "timestamp_granularities"
            )
        return self._spec(wav, max_seconds, "transcribe", self.language)


class SpokenSegment(AnswerBody):
    """A part of a text with its times in seconds. `seek`: first frame (of 10 ms) of its window.

    `avg_logprob`: mean over all tokens of the window, time tokens included.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float | None
    compression_ratio: float


class DurationUsage(AnswerBody):
    type: Literal["duration"]
    seconds: int


class TranscriptionAnswer(AnswerBody):
    """The text of a recording. Only `response_format` verbose_json has more than `text` and `usage`."""

    text: str
    usage: DurationUsage
    task: SpeechTask | None = None
    language: str | None = None
    duration: float | None = None
    segments: list[SpokenSegment] | None = None


@dataclass(frozen=True, kw_only=True)
class AudioRoute(Route[TranslationForm, TranscribeSpec, Transcript]):
    """A route whose body is a form with a recording. The number of recordings in memory is limited."""

    media_type: ClassVar[str] = "multipart/form-data"

    async def respond(self, request: Request) -> Response:
        state = of(request)
        settings = state.settings
        if state.recordings >= settings.max_recordings:
            raise Overloaded(
                f"too many audio requests in progress ({state.recordings}); try again in 1 s", retry_after=1
            )
        state.recordings += 1
        try:
            form, wav = await read_form(
                request, self.body, _LISTS, settings.max_audio_bytes, settings.audio_timeout_seconds
            )
            with self.call(request, state, form) as call:
                spec = form.spec(wav, settings.max_audio_seconds)
                async with leaving_on_disconnect(request, call):
                    transcript = await self.run(state.runtime, call, spec)
            return _render(form, spec.task, transcript)
        finally:
            state.recordings -= 1


def _render(form: TranslationForm, task: SpeechTask, transcript: Transcript) -> Response:
    if form.response_format == "srt":
        return PlainTextResponse(srt(transcript.lines))
    if form.response_format == "vtt":
        return PlainTextResponse(vtt(transcript.lines), media_type="text/vtt")
    if form.response_format == "text":
        return PlainTextResponse(transcript.text + "\n")
    answer: dict[str, Any] = {
        "text": transcript.text,
        "usage": {"type": "duration", "seconds": math.ceil(transcript.seconds)},
    }
    if form.response_format == "verbose_json":
        language = "en" if task == "translate" or transcript.language is None else transcript.language
        answer |= {
            "task": task,
            "language": language_name(language),
            "duration": round(transcript.seconds, 3),
            "segments": _segments(transcript.lines, form.temperature or 0.0),
        }
    return json_response(answer)


def _segments(lines: Sequence[SubtitleLine], temperature: float) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "seek": line.window_frame,
            "start": round(line.start, 3),
            "end": round(line.end, 3),
            "text": line.text,
            "tokens": line.token_ids,
            "temperature": temperature,
            "avg_logprob": line.mean_logprob,
            "compression_ratio": _compression_ratio(line.text),
        }
        for number, line in enumerate(lines)
    ]


def _compression_ratio(text: str) -> float:
    """Length of the text over its length after compression; high values mean repetition."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


_EXAMPLES: Mapping[str, tuple[Mapping[str, Any], Any]] = {
    "transcriptions": (
        {"file": "(the bytes of a WAV file)", "language": "en", "response_format": "verbose_json"},
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
                }
            ],
        },
    ),
    "translations": (
        {"file": "(the bytes of a WAV file)"},
        {"text": "The garden is small.", "usage": {"type": "duration", "seconds": 3}},
    ),
}

ROUTES: tuple[AudioRoute, ...] = (
    AudioRoute(
        path="/v1/audio/transcriptions",
        operation="transcribe",
        name="transcriptions",
        description="The text of a recording, in the language that is spoken.",
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
        description="The text of a recording, translated to English.",
        body=TranslationForm,
        answer=TranscriptionAnswer,
        example=_EXAMPLES["translations"],
        run=transcribe,
        errors=ERRORS,
    ),
)
