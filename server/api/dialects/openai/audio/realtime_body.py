"""Settings and client events of live transcription, in the forms of OpenAI's current API and of its beta."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from server.api.bodies.body import validate
from server.api.bodies.json_size import ValueLimits, check_size
from server.api.dialects.openai.audio.live_turn import DEFAULT_INTERVAL_MS, MAX_INTERVAL_MS
from server.api.fields.fields import Finite
from server.api.fields.schema_errors import describe_errors, path_in
from server.audio import g711
from server.audio.speech_turns import SpeechTurns
from server.errors import InvalidRequest

PCM_RATE = 24_000
AudioFormat = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
_OLD_FORMATS: dict[str, AudioFormat] = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}


class _Object(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class ServerVad(_Object):
    """Voice activity detection that ends a turn. `create_response` and `interrupt_response` have no effect.

    These two are for chat models, whose answers a transcription does not have.
    """

    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[Finite, Field(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Field(ge=0, le=2_000)] = 300
    silence_duration_ms: Annotated[int, Field(ge=100, le=10_000)] = 500
    create_response: bool | None = None
    interrupt_response: bool | None = None
    idle_timeout_ms: None = None


class Transcription(_Object):
    model: Annotated[str | None, Field(max_length=256)] = None
    language: Annotated[str | None, Field(max_length=64)] = None
    prompt: Annotated[str | None, Field(max_length=16_384)] = None


class Format(_Object):
    type: AudioFormat = "audio/pcm"
    rate: Literal[24000, 8000] | None = None


class AudioInput(_Object):
    format: Format | None = None
    transcription: Transcription | None = None
    turn_detection: ServerVad | None = None
    noise_reduction: Any = None


class Audio(_Object):
    input: AudioInput | None = None


class SessionFields(_Object):
    """The field `session` of the event `session.update`."""

    type: Literal["transcription"]
    audio: Audio | None = None
    include: Annotated[list[str] | None, Field(max_length=0)] = None


class OldSessionFields(_Object):
    """The field `session` of `transcription_session.update`, an event of OpenAI's beta."""

    input_audio_format: Literal["pcm16", "g711_ulaw", "g711_alaw"] | None = None
    input_audio_transcription: Transcription | None = None
    turn_detection: ServerVad | None = None
    input_audio_noise_reduction: Any = None
    include: Annotated[list[str] | None, Field(max_length=0)] = None


class _IdentifiedEvent(_Object):
    event_id: Annotated[str | None, Field(max_length=512)] = None


class Update(_IdentifiedEvent):
    type: Literal["session.update"]
    session: SessionFields


class OldUpdate(_IdentifiedEvent):
    type: Literal["transcription_session.update"]
    session: OldSessionFields


class Append(_IdentifiedEvent):
    type: Literal["input_audio_buffer.append"]
    audio: str


class Commit(_IdentifiedEvent):
    type: Literal["input_audio_buffer.commit"]


class Clear(_IdentifiedEvent):
    type: Literal["input_audio_buffer.clear"]


class SessionQuery(BaseModel):
    """Query parameters of the address. Other parameters, such as `intent`, have no effect.

    interval_ms: new audio after which a turn in progress is decoded again; 0 to decode turns only at their end.
    """

    model: str | None = None
    interval_ms: Annotated[int, Field(ge=0, le=MAX_INTERVAL_MS)] = DEFAULT_INTERVAL_MS


def parse_query(query: Mapping[str, str]) -> SessionQuery:
    """Parse the query of the address. An empty parameter counts as absent. Raises InvalidRequest."""
    return validate({name: value for name, value in query.items() if value}, SessionQuery)


ClientEvent = Update | OldUpdate | Append | Commit | Clear
_EVENTS: Mapping[str, type[ClientEvent]] = {
    "session.update": Update,
    "transcription_session.update": OldUpdate,
    "input_audio_buffer.append": Append,
    "input_audio_buffer.commit": Commit,
    "input_audio_buffer.clear": Clear,
}
_VALUES = ValueLimits(values=256, strings=256, keys=128, containers=64)
"""Limits of one event, which has about 50 values at most. Without them, 4 MB of empty lists would block for 100 ms."""


def parse_event(text: str) -> ClientEvent:
    """Parse a client event. Raises InvalidRequest, whose message names the wrong field but never its value."""
    raw = text.encode()
    check_size(raw, _VALUES, "the message")
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest("the message is not a JSON object with an event")
    kind = value.get("type")
    schema = _EVENTS.get(kind) if isinstance(kind, str) else None
    if schema is None:
        kinds = "session.update, transcription_session.update, input_audio_buffer.append, .commit and .clear"
        raise InvalidRequest(f"`type` must be one of {kinds}", "type")
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
    message, name = describe_errors(value, found, schema)
    raise InvalidRequest(message, path_in(value, found[0]["loc"])[0] or name)


@dataclass(frozen=True)
class LiveSettings:
    """The settings of a session. An update event changes only the fields that it names.

    format: format of the client's audio.
    turns: detection of a turn's end; None if the client commits turns.
    """

    format: AudioFormat = "audio/pcm"
    transcription: Transcription = field(default_factory=Transcription)
    turns: ServerVad | None = field(default_factory=ServerVad)

    @property
    def rate(self) -> int:
        return PCM_RATE if self.format == "audio/pcm" else g711.RATE

    def pcm(self, data: bytes) -> bytes:
        """Convert the client's audio to 16-bit PCM. Raises InvalidRequest for an odd number of PCM bytes."""
        if self.format == "audio/pcm":
            if len(data) % 2:
                raise InvalidRequest("`audio` has an odd number of bytes; a sample of PCM has 2", "audio")
            return data
        return g711.decode_ulaw(data) if self.format == "audio/pcmu" else g711.decode_alaw(data)

    def detector(self) -> SpeechTurns | None:
        turns = self.turns
        if turns is None:
            return None
        return SpeechTurns(self.rate, turns.threshold, turns.prefix_padding_ms, turns.silence_duration_ms)

    def updated(self, event: Update | OldUpdate) -> LiveSettings:
        """The settings after an update event. Raises InvalidRequest for a sample rate that the format does not have."""
        if isinstance(event, OldUpdate):
            old = event.session
            return self._with(
                old.model_fields_set,
                old.turn_detection,
                old.input_audio_transcription,
                None if old.input_audio_format is None else _OLD_FORMATS[old.input_audio_format],
            )
        audio = event.session.audio
        given = None if audio is None else audio.input
        if given is None:
            return self
        kind = None if given.format is None else given.format.type
        if given.format is not None and given.format.rate is not None:
            rate = replace(self, format=given.format.type).rate
            if given.format.rate != rate:
                raise InvalidRequest(f"`session.audio.input.format.rate` must be {rate}", "session.audio.input.format")
        return self._with(given.model_fields_set, given.turn_detection, given.transcription, kind)

    def _with(
        self,
        named: set[str],
        turns: ServerVad | None,
        transcription: Transcription | None,
        kind: AudioFormat | None,
    ) -> LiveSettings:
        merged = self.transcription
        if transcription is not None:
            merged = merged.model_copy(update=transcription.model_dump(exclude_unset=True))
        return LiveSettings(kind or self.format, merged, turns if "turn_detection" in named else self.turns)

    def describe(self, session_id: str, is_old: bool) -> dict[str, Any]:
        """The session as an object for server events. is_old: use the form of OpenAI's beta."""
        transcription = self.transcription.model_dump()
        turns = None
        if self.turns is not None:
            turns = self.turns.model_dump(include={"type", "threshold", "prefix_padding_ms", "silence_duration_ms"})
        if is_old:
            name = next(old for old, new in _OLD_FORMATS.items() if new == self.format)
            return {
                "id": session_id,
                "object": "realtime.transcription_session",
                "input_audio_format": name,
                "input_audio_transcription": transcription,
                "turn_detection": turns,
                "input_audio_noise_reduction": None,
                "include": None,
            }
        form = {"type": self.format} | ({"rate": PCM_RATE} if self.format == "audio/pcm" else {})
        given = {"format": form, "transcription": transcription, "turn_detection": turns, "noise_reduction": None}
        return {
            "id": session_id,
            "object": "realtime.transcription_session",
            "type": "transcription",
            "audio": {"input": given},
            "include": None,
        }
