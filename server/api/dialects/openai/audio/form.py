"""Fields of a form with a recording, and their conversion to a `TranscribeSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from server.api.fields.field_kinds import wish
from server.api.fields.fields import TIMEOUT_DESCRIPTION, Finite, Language, ModelName
from server.errors import InvalidRequest
from server.operations.speech.recording_file import RecordingFile
from server.operations.speech.speech_fallback import temperatures
from server.operations.speech.transcribe_spec import TranscribeSpec
from server.operations.speech.voice_filter import VoiceFilter
from server.text.speech.speech import SpeechTask

LISTS = frozenset(
    {
        "temperature",
        "timestamp_granularities",
        "include",
        "keywords",
        "languages",
        "known_speaker_names",
        "known_speaker_references",
    }
)
"""Form fields that may be repeated, and then form a list."""
_TIMED = frozenset({"verbose_json", "srt", "vtt"})
_STREAMED = frozenset({"json", "text"})

Probability = Annotated[Finite | None, Field(ge=0, le=1)]
Temperature = Annotated[Finite, Field(ge=0, le=1)]
Milliseconds = Annotated[int | None, Field(ge=0, le=60_000)]
Words = Annotated[str, Field(max_length=4096)]


def _from_json(value: Any) -> Any:
    """Parse text that is a JSON object or list. Any other value is returned unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def _one_or_several(values: Any) -> Any:
    """Convert the values of a field that may be repeated: a list with one value becomes that value.

    That value may be the JSON text of a list.
    """
    if isinstance(values, list) and len(values) == 1:
        values = _from_json(values[0])
    return values


class ChunkingStrategy(BaseModel):
    """How a recording is cut into windows: `server_vad` cuts at silence, with settings of voice activity detection."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    type: Literal["server_vad", "auto"]
    prefix_padding_ms: Annotated[Milliseconds, Field(description="kept before and after speech; default: 400")] = None
    silence_duration_ms: Annotated[Milliseconds, Field(description="shortest silence left out; default: 2000")] = None
    threshold: Annotated[Any, wish()] = None


class TranslationForm(BaseModel):
    """Form of `/v1/audio/translations`, and base of the form for transcriptions. Numbers are converted from text."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: ModelName = None
    prompt: Annotated[str | None, Field(max_length=16_384, description="text before the recording")] = None
    hotwords: Annotated[Words | None, Field(description="words that precede every window, such as names")] = None
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    temperature: Annotated[
        Temperature | Annotated[list[Temperature], Field(min_length=1, max_length=16)] | None,
        BeforeValidator(_one_or_several),
        Field(description="one, or a list to try in order; default: 0, then up to 1 for windows that are rejected"),
    ] = None
    stream: bool | None = None
    seed: Annotated[int | None, Field(ge=0, lt=1 << 64)] = None
    num_beams: Annotated[int | None, Field(ge=1, le=16)] = None
    timeout_ms: Annotated[int | None, Field(ge=1, description=TIMEOUT_DESCRIPTION)] = None
    temperature_increment_on_fallback: Annotated[
        Finite | None, Field(ge=0, le=1, description="0: a window is decoded once; default: 0.2")
    ] = None
    compression_ratio_threshold: Annotated[Finite | None, Field(gt=0)] = None
    logprob_threshold: Annotated[Finite | None, Field(le=0)] = None
    no_speech_threshold: Probability = None
    condition_on_previous_text: bool | None = None
    chunking_strategy: Annotated[
        Literal["auto"] | ChunkingStrategy | None,
        BeforeValidator(_from_json),
        Field(description="`auto`, or an object as JSON or as `chunking_strategy[type]`"),
    ] = None
    vad_filter: Annotated[
        bool | None, Field(description="leave out parts without speech; default: with `chunking_strategy`")
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _read_form(cls, values: Any) -> Any:
        """Remove empty values, which forms send for fields that are not filled in.

        Fields such as `chunking_strategy[type]` become members of the object `chunking_strategy`.
        Raises InvalidRequest for the response format diarized_json. Raises ValueError if `chunking_strategy` is sent
        both as one field and as members.
        """
        if not isinstance(values, Mapping):
            return values
        fields: dict[str, Any] = {}
        chunking: dict[str, Any] = {}
        for name, value in values.items():
            found = [entry for entry in value if entry != ""] if isinstance(value, list) else value
            if found in ("", []):
                continue
            if name.startswith("chunking_strategy[") and name.endswith("]"):
                chunking[name[len("chunking_strategy[") : -1]] = found
            else:
                fields[name] = found
        if chunking:
            if "chunking_strategy" in fields:
                raise ValueError("has `chunking_strategy` twice")
            fields["chunking_strategy"] = chunking
        if fields.get("response_format") == "diarized_json":
            raise InvalidRequest(
                "`response_format` diarized_json is not supported: no model of this server tells speakers apart",
                "response_format",
            )
        return fields

    def spec(self, file: RecordingFile, max_seconds: float) -> TranscribeSpec:
        """Convert the form to a `TranscribeSpec` that translates to English. Raises InvalidRequest.

        file: the recording. max_seconds: longest recording that the server accepts.
        """
        is_verbose = self.response_format == "verbose_json"
        return self._spec(file, max_seconds, "translate", hotwords=self.hotwords or "", with_logprobs=is_verbose)

    def _spec(self, file: RecordingFile, max_seconds: float, task: SpeechTask, **more: Any) -> TranscribeSpec:
        """Create a `TranscribeSpec` from the fields that all forms have. more: further fields of `TranscribeSpec`.

        Raises InvalidRequest for a stream with a `response_format` that cannot be streamed.
        """
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
            temperatures=self._temperatures(),
            num_beams=self.num_beams,
            seed=self.seed,
            compression_ratio_threshold=self.compression_ratio_threshold,
            logprob_threshold=self.logprob_threshold,
            no_speech_threshold=self.no_speech_threshold,
            condition_on_previous_text=self.condition_on_previous_text,
            batched=self.chunking_strategy is not None,
            voice_filter=self._voice_filter(),
            with_times=self.response_format in _TIMED,
            **more,
        )

    def _temperatures(self) -> tuple[float, ...] | None:
        """The temperatures to try for a window, one after the other; None for the model's published temperatures.

        They are the list in `temperature`, or a series that begins with `temperature` and grows by
        `temperature_increment_on_fallback`. Without an increment, a temperature above 0 is the only one, as in OpenAI's
        API. Raises InvalidRequest for a list with an increment.
        """
        first, step = self.temperature, self.temperature_increment_on_fallback
        if isinstance(first, list):
            if step is not None:
                raise InvalidRequest(
                    "`temperature_increment_on_fallback` cannot be combined with a list of `temperature`",
                    "temperature_increment_on_fallback",
                )
            return tuple(first)
        if step is None:
            return (first,) if first else None
        return temperatures(first or 0.0, step)

    def _voice_filter(self) -> VoiceFilter | None:
        chunking = self.chunking_strategy
        if not (chunking is not None if self.vad_filter is None else self.vad_filter):
            return None
        if not isinstance(chunking, ChunkingStrategy):
            return VoiceFilter()
        given = {"padding_ms": chunking.prefix_padding_ms, "min_silence_ms": chunking.silence_duration_ms}
        return VoiceFilter(**{name: value for name, value in given.items() if value is not None})


class TranscriptionForm(TranslationForm):
    language: Annotated[Language | None, Field(description="code or English name; default: detected")] = None
    languages: Annotated[
        list[Language] | None, Field(max_length=128, description="languages to choose from by detection")
    ] = None
    timestamp_granularities: list[Literal["segment", "word"]] | None = None
    include: Annotated[
        list[Literal["logprobs"]] | None, Field(description="log-probabilities of the tokens, with json")
    ] = None
    keywords: Annotated[list[Words] | None, Field(max_length=100, description="further `hotwords`")] = None
    known_speaker_names: Annotated[Any, wish([])] = None
    known_speaker_references: Annotated[Any, wish([])] = None

    def spec(self, file: RecordingFile, max_seconds: float) -> TranscribeSpec:
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise InvalidRequest(
                "`timestamp_granularities` requires `response_format` verbose_json", "timestamp_granularities"
            )
        if self.include and self.response_format != "json":
            raise InvalidRequest("`include` with logprobs requires `response_format` json", "include")
        if self.language is not None and self.languages:
            raise InvalidRequest("`languages` cannot be combined with `language`", "languages")
        return self._spec(
            file,
            max_seconds,
            "transcribe",
            language=self.language,
            languages=tuple(self.languages or ()),
            hotwords=", ".join(filter(None, [self.hotwords, *(self.keywords or ())])),
            with_words="word" in (self.timestamp_granularities or ()),
            with_logprobs=self.response_format == "verbose_json" or bool(self.include),
        )
