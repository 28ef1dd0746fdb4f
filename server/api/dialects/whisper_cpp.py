"""The dialect of whisper.cpp's server: `POST /inference`, a form with a recording.

Fields and answers follow its source (`examples/server/server.cpp`), with two differences. The language is detected if
the form names none, where whisper.cpp uses the language of its command line. A field that would have no effect here is
refused, or named in `X-Ignored-Parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from starlette.responses import PlainTextResponse, Response

from server.api.bodies.json_answer import json_response
from server.api.fields.field_kinds import Hint, only, wish
from server.api.fields.fields import Finite, Language, ModelName, form_value
from server.api.routes.error_shape import AnswerBody, ErrorMembers, ErrorShape, named_message
from server.api.routes.recording_route import RecordingRoute
from server.operations.speech.recording_file import RecordingFile
from server.operations.speech.speech_fallback import temperatures
from server.operations.speech.transcribe import transcribe
from server.operations.speech.transcribe_spec import TranscribeSpec, Transcript
from server.operations.speech.voice_filter import VoiceFilter
from server.text.speech.speech import SpeechTask, language_name
from server.text.speech.subtitles import srt, vtt

_TIMED = frozenset({"verbose_json", "srt", "vtt"})
TEMPERATURE_STEP = 0.2
"""Default difference between the temperatures that are tried one after another."""


def _number(value: object) -> object:
    """Convert text of a form to a float. Text that is no number, and any other value, is returned unchanged."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


_Off = Annotated[Any, BeforeValidator(form_value), only(False, 0)]
_Zero = Annotated[Any, BeforeValidator(_number), only(0.0, 0)]
_Unset = Annotated[Any, BeforeValidator(_number), wish(0.0, -1.0)]


class WhisperCppForm(BaseModel):
    """Form of `/inference`, besides the file. Numbers are converted, because form values are text."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: ModelName = None
    response_format: Literal["json", "verbose_json", "text", "srt", "vtt"] = "json"
    language: Annotated[Language | None, Field(description="code or English name; default and auto: detected")] = None
    detect_language: Annotated[bool | None, Field(description="`language` is not used")] = None
    translate: Annotated[bool | None, Field(description="write English")] = None
    prompt: Annotated[str | None, Field(max_length=16_384, description="text before the recording")] = None
    no_context: Annotated[bool | None, Field(description="the text so far does not precede each part")] = None
    temperature: Annotated[Finite | None, Field(ge=0, le=1)] = None
    temperature_inc: Annotated[
        Finite | None, Field(ge=0, le=1, description="0: a part is decoded once; default: 0.2")
    ] = None
    beam_size: Annotated[int | None, Field(ge=-1, le=16, description="-1 and 0: no beam search")] = None
    logprob_thold: Annotated[Finite | None, Field(le=0)] = None
    no_timestamps: Annotated[bool | None, Field(description="verbose_json has no times")] = None
    vad: Annotated[bool | None, Field(description="leave out parts without speech")] = None
    vad_min_silence_duration_ms: Annotated[Finite | None, Field(ge=0, le=60_000)] = None
    vad_speech_pad_ms: Annotated[Finite | None, Field(ge=0, le=60_000)] = None
    debug_mode: Hint = None
    no_language_probabilities: Hint = None
    word_thold: Annotated[Any, wish()] = None
    best_of: _Unset = None
    max_context: _Unset = None
    max_len: _Unset = None
    audio_ctx: _Unset = None
    entropy_thold: Annotated[Any, wish()] = None
    vad_threshold: Annotated[Any, wish()] = None
    vad_min_speech_duration_ms: Annotated[Any, wish()] = None
    vad_max_speech_duration_s: Annotated[Any, wish()] = None
    vad_samples_overlap: Annotated[Any, wish()] = None
    split_on_word: Annotated[Any, BeforeValidator(form_value), wish(False, 0)] = None
    suppress_non_speech: Annotated[Any, BeforeValidator(form_value), wish(False, 0)] = None
    suppress_nst: Annotated[Any, BeforeValidator(form_value), wish(False, 0)] = None
    diarize: _Off = None
    tinydiarize: _Off = None
    offset_t: _Zero = None
    offset_n: _Zero = None
    duration: _Zero = None

    @model_validator(mode="before")
    @classmethod
    def _filled_in(cls, values: Any) -> Any:
        """Remove empty fields, because web forms also send fields that are not filled in."""
        if not isinstance(values, Mapping):
            return values
        return {name: value for name, value in values.items() if value != ""}

    @property
    def task(self) -> SpeechTask:
        return "translate" if self.translate else "transcribe"

    def spec(self, file: RecordingFile, max_seconds: float) -> TranscribeSpec:
        """Convert the form to a `TranscribeSpec`. max_seconds: longest recording that the server accepts."""
        detects = bool(self.detect_language) or self.language == "auto"
        step = TEMPERATURE_STEP if self.temperature_inc is None else self.temperature_inc
        return TranscribeSpec(
            file,
            max_seconds,
            self.task,
            model=self.model,
            language=None if detects else self.language,
            prompt=self.prompt or "",
            temperatures=temperatures(self.temperature or 0.0, step),
            num_beams=self.beam_size if (self.beam_size or 0) > 0 else None,
            logprob_threshold=self.logprob_thold,
            condition_on_previous_text=False if self.no_context else None,
            voice_filter=self._voice_filter(),
            with_times=self.response_format in _TIMED,
            with_logprobs=self.response_format == "verbose_json",
        )

    def _voice_filter(self) -> VoiceFilter | None:
        if not self.vad:
            return None
        given = {"min_silence_ms": self.vad_min_silence_duration_ms, "padding_ms": self.vad_speech_pad_ms}
        return VoiceFilter(**{name: int(value) for name, value in given.items() if value is not None})


class WhisperCppErrorAnswer(ErrorMembers):
    error: str


class WhisperCppSegment(AnswerBody):
    """A part of the text. `start`, `end`: its times in seconds; absent if the form has `no_timestamps`."""

    id: int
    text: str
    start: float | None = None
    end: float | None = None
    tokens: list[int]
    temperature: float
    avg_logprob: float | None
    no_speech_prob: float | None


class WhisperCppAnswer(AnswerBody):
    """The text of a recording, with one part on each line. The other fields need `response_format` verbose_json."""

    text: str
    task: SpeechTask | None = None
    language: str | None = None
    duration: float | None = None
    segments: list[WhisperCppSegment] | None = None


def _render(form: WhisperCppForm, transcript: Transcript) -> Response:
    lines = transcript.lines
    if form.response_format == "srt":
        return PlainTextResponse(srt(lines), media_type="application/x-subrip")
    if form.response_format == "vtt":
        return PlainTextResponse(vtt(lines), media_type="text/vtt")
    text = "".join(f"{line.text}\n" for line in lines)
    if form.response_format == "text":
        return PlainTextResponse(text)
    answer: dict[str, Any] = {"text": text}
    if form.response_format == "verbose_json":
        answer |= {
            "task": form.task,
            "language": language_name(transcript.language or "en"),
            "duration": round(transcript.seconds, 3),
            "segments": [
                {"id": index, "text": line.text}
                | ({} if form.no_timestamps else {"start": round(line.start, 3), "end": round(line.end, 3)})
                | {
                    "tokens": line.token_ids,
                    "temperature": line.temperature,
                    "avg_logprob": line.mean_logprob,
                    "no_speech_prob": line.no_speech_prob,
                }
                for index, line in enumerate(lines)
            ],
        }
    return json_response(answer)


ROUTES: tuple[RecordingRoute[WhisperCppForm], ...] = (
    RecordingRoute(
        path="/inference",
        operation="transcribe",
        name="inference",
        description="The text of a recording, as whisper.cpp's server answers it.",
        body=WhisperCppForm,
        answer=WhisperCppAnswer,
        example=(
            {"file": "(the bytes of an audio file)", "temperature": "0.0", "response_format": "json"},
            {"text": " The garden is small.\n"},
        ),
        parse=WhisperCppForm.spec,
        run=transcribe,
        render=_render,
        errors=ErrorShape(
            body=lambda error, request_id: {"error": named_message(error)},
            answer=WhisperCppErrorAnswer,
            fields={
                "num_beams": "beam_size",
                "logprob_threshold": "logprob_thold",
                "temperature_increment_on_fallback": "temperature_inc",
            },
        ),
    ),
)
