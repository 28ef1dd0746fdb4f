"""The parameters of a live stream in the query of its address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from server.api.dialects.openai.audio.live_turn import DEFAULT_INTERVAL_MS, MAX_INTERVAL_MS
from server.api.fields.fields import Finite, Language, ModelName
from server.audio.pcm_stream import PcmStream, check_rate
from server.audio.speech_turns import SpeechTurns
from server.operations.speech.recording_file import RecordingFile
from server.operations.speech.transcribe_spec import TranscribeSpec

DEFAULT_RATE = 16_000
MAX_TURN_SECONDS = 60.0
"""Limit for the audio of one turn. No turn reaches it, even with its padding."""


class LiveQuery(BaseModel):
    """Query parameters of a live stream: model, language, format of the audio, and detection of turns."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: ModelName = None
    language: Annotated[Language | None, Field(description="code or English name; default: detected")] = None
    prompt: Annotated[str | None, Field(max_length=4096, description="text before the recording")] = None
    format: Annotated[
        Literal["pcm", "pcmu", "pcma"] | None,
        Field(description="of the audio; default: WAV if it begins so, else pcm of 16 bits, little-endian, mono"),
    ] = None
    rate: Annotated[int, Field(description="samples a second of pcm")] = DEFAULT_RATE
    threshold: Annotated[
        Finite, Field(ge=0, le=1, description="loudness above the background that is speech: 4 dB (0) to 20 dB (1)")
    ] = 0.5
    prefix_padding_ms: Annotated[int, Field(ge=0, le=2_000, description="audio of a turn before its speech")] = 300
    silence_duration_ms: Annotated[int, Field(ge=100, le=10_000, description="silence that ends a turn")] = 500
    interval_ms: Annotated[
        int,
        Field(ge=0, le=MAX_INTERVAL_MS, description="new audio before a turn is decoded again; 0: only at its end"),
    ] = DEFAULT_INTERVAL_MS

    def source(self) -> PcmStream:
        """Create the decoder that converts the bytes of the request body to samples."""
        return PcmStream(self.format, self.rate)

    def settings(self, rate: int) -> LiveAudio:
        """The audio settings for an `AudioBuffer`. rate: samples per second of the decoded body."""
        return LiveAudio(rate, self.threshold, self.prefix_padding_ms, self.silence_duration_ms)

    def spec(self) -> TranscribeSpec:
        """The specification of one turn, without its audio. Raises InvalidRequest for a wrong sample rate."""
        check_rate(self.rate)
        return TranscribeSpec(
            RecordingFile(b""), MAX_TURN_SECONDS, model=self.model, language=self.language, prompt=self.prompt or ""
        )


@dataclass(frozen=True)
class LiveAudio:
    """Settings for the decoded audio of a live stream.

    rate: samples per second. The other fields are arguments of the turn detector, `SpeechTurns`.
    """

    rate: int
    threshold: float
    prefix_milliseconds: int
    silence_milliseconds: int

    def pcm(self, data: bytes) -> bytes:
        """Return the data unchanged, because the body was decoded to 16-bit PCM before."""
        return data

    def detector(self) -> SpeechTurns:
        return SpeechTurns(self.rate, self.threshold, self.prefix_milliseconds, self.silence_milliseconds)
