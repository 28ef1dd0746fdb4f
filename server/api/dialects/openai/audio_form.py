"""Fields of a form with a recording, and their conversion to a specification."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from server.api.fields.field_kinds import wish
from server.api.fields.fields import TIMEOUT_DESCRIPTION, Finite, Language, ModelName
from server.errors import InvalidRequest
from server.operations.speech.recording_file import RecordingFile
from server.operations.speech.transcribe_spec import TranscribeSpec
from server.text.speech.speech import SpeechTask

LISTS = frozenset(
    {
        "timestamp_granularities",
        "include",
        "keywords",
        "languages",
        "known_speaker_names",
        "known_speaker_references",
    }
)
"""Fields that may be repeated."""
_TIMED = frozenset({"verbose_json", "srt", "vtt"})
_STREAMED = frozenset({"json", "text"})

Probability = Annotated[Finite | None, Field(ge=0, le=1)]


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
    timeout_ms: Annotated[int | None, Field(ge=1, description=TIMEOUT_DESCRIPTION)] = None
    temperature_increment_on_fallback: Annotated[Finite | None, Field(ge=0.1, le=1)] = None
    compression_ratio_threshold: Annotated[Finite | None, Field(gt=0)] = None
    logprob_threshold: Annotated[Finite | None, Field(le=0)] = None
    no_speech_threshold: Probability = None
    condition_on_previous_text: bool | None = None
    chunking_strategy: Literal["auto"] | None = None
    chunking_type: Annotated[
        Literal["server_vad"] | None, Field(alias="chunking_strategy[type]", description="the same as `auto`")
    ] = None
    chunking_padding: Annotated[Any, wish(), Field(alias="chunking_strategy[prefix_padding_ms]")] = None
    chunking_silence: Annotated[Any, wish(), Field(alias="chunking_strategy[silence_duration_ms]")] = None
    chunking_threshold: Annotated[Any, wish(), Field(alias="chunking_strategy[threshold]")] = None

    def spec(self, file: RecordingFile, max_seconds: float) -> TranscribeSpec:
        """Convert the form to a specification. Raises InvalidRequest.

        file: the bytes of the part `file`. max_seconds: longest recording that the server accepts.
        """
        return self._spec(file, max_seconds, "translate")

    def _spec(self, file: RecordingFile, max_seconds: float, task: SpeechTask, **more: Any) -> TranscribeSpec:
        """A specification with the fields of every form. more: further fields of `TranscribeSpec`."""
        if self.stream and self.response_format not in _STREAMED:
            raise InvalidRequest(
                f"`stream` requires `response_format` json or text, not {self.response_format}", "stream"
            )
        return TranscribeSpec(
            file,
            max_seconds,
            task,
            model=self.model,
            prompt=self.prompt or "",
            temperature=self.temperature or 0.0,
            num_beams=self.num_beams,
            seed=self.seed,
            temperature_increment=self.temperature_increment_on_fallback,
            compression_ratio_threshold=self.compression_ratio_threshold,
            logprob_threshold=self.logprob_threshold,
            no_speech_threshold=self.no_speech_threshold,
            condition_on_previous_text=self.condition_on_previous_text,
            batched=self.chunking_strategy is not None or self.chunking_type is not None,
            with_times=self.response_format in _TIMED,
            with_logprobs=self.response_format == "verbose_json",
            **more,
        )


class TranscriptionForm(TranslationForm):
    language: Annotated[Language | None, Field(description="code or English name; default: detected")] = None
    timestamp_granularities: list[Literal["segment", "word"]] | None = None
    include: Annotated[Any, wish([])] = None
    keywords: Annotated[Any, wish([])] = None
    languages: Annotated[Any, wish([])] = None
    known_speaker_names: Annotated[Any, wish([])] = None
    known_speaker_references: Annotated[Any, wish([])] = None

    def spec(self, file: RecordingFile, max_seconds: float) -> TranscribeSpec:
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise InvalidRequest(
                "`timestamp_granularities` requires `response_format` verbose_json", "timestamp_granularities"
            )
        return self._spec(
            file,
            max_seconds,
            "transcribe",
            language=self.language,
            with_words="word" in (self.timestamp_granularities or ()),
        )
