"""The specification of a transcription request, its cost, and its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from server.audio.frames import FRAMES_PER_SECOND, FRAMES_PER_TOKEN, second_bytes
from server.errors import InvalidRequest
from server.ipc.wire.encode_messages import FLOAT_BYTES
from server.operations.cost import Cost
from server.operations.served_model import ServedModel
from server.operations.speech.recording_file import RecordingFile
from server.operations.speech.speech_fallback import (
    COMPRESSION_RATIO,
    DEFAULT_TEMPERATURES,
    LOGPROB,
    NO_SPEECH,
    FallbackRules,
)
from server.operations.speech.voice_filter import VoiceFilter
from server.text.speech.speech import SpeechTask
from server.text.speech.speech_settings import SpeechSettings
from server.text.speech.subtitles import SubtitleLine

BATCH_WINDOWS = 16
"""Maximum number of windows that are decoded at the same time in the batched mode."""


@dataclass(frozen=True)
class TranscribeSpec:
    """Request for the text of a recording.

    file: the audio file.
    max_seconds: longest recording that is accepted.
    task: `transcribe` to write the spoken language, `translate` to write English.
    language: code or English name of the spoken language; None to detect it.
    languages: languages that detection chooses from; empty for all languages of the model.
    prompt: text that came before the recording; the decoder reads it before the first window.
    hotwords: words that the decoder reads before every window, followed by the prompt or the earlier transcript.
    temperatures: temperatures to try in order for each window. At 0, the likeliest text is taken. With one temperature,
        no window is decoded again. None for `DEFAULT_TEMPERATURES`.
    compression_ratio_threshold: maximum of the text's size divided by its compressed size; a window above it is decoded
        again at the next temperature.
    logprob_threshold: minimum of the mean log-probability; a window below it is decoded again at the next temperature.
    no_speech_threshold: a window with a higher probability of no speech, and a mean log-probability below
        `logprob_threshold`, has no text; 1 for no such windows.
    For a threshold that is None, the checkpoint's applies, or else the default of the published code.
    condition_on_previous_text: the decoder reads the earlier transcript before each window; None for the checkpoint's
        choice.
    batched: cut the recording at silences, and decode several windows at the same time.
    voice_filter: settings to remove parts without speech first; None to decode the whole recording.
    with_times: compute the times of each segment. Recordings longer than one window always need them.
    with_words: compute the times of each word; requires `with_times`.
    words_param: the request's field that asks for the times of words, for errors.
    with_logprobs: compute log-probabilities of tokens and the probability of no speech.
    """

    file: RecordingFile
    max_seconds: float
    task: SpeechTask = "transcribe"
    model: str | None = None
    language: str | None = None
    languages: Sequence[str] = ()
    prompt: str = ""
    hotwords: str = ""
    temperatures: tuple[float, ...] | None = None
    num_beams: int | None = None
    seed: int | None = None
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    condition_on_previous_text: bool | None = None
    batched: bool = False
    voice_filter: VoiceFilter | None = None
    with_times: bool = False
    with_words: bool = False
    words_param: str = "timestamp_granularities"
    with_logprobs: bool = False

    @property
    def attempts(self) -> tuple[float, ...]:
        """The temperatures to try in order."""
        return self.temperatures or DEFAULT_TEMPERATURES

    def check(self) -> None:
        """Raise InvalidRequest for options that contradict each other or would have no effect."""
        if self.attempts[0] and (self.num_beams or 1) > 1:
            raise InvalidRequest("`num_beams` cannot be combined with a `temperature`", "num_beams")
        if len(self.attempts) == 1:
            if self.compression_ratio_threshold is not None:
                raise InvalidRequest(
                    "`compression_ratio_threshold` requires more than one temperature, and one was chosen",
                    "compression_ratio_threshold",
                )
            if self.logprob_threshold is not None and (self.no_speech_threshold or 0) >= 1:
                raise InvalidRequest(
                    "`logprob_threshold` requires more than one temperature or a `no_speech_threshold` below 1",
                    "logprob_threshold",
                )
        if self.batched and self.condition_on_previous_text:
            raise InvalidRequest(
                "`condition_on_previous_text` cannot be combined with `chunking_strategy`: its windows are decoded at "
                "the same time",
                "condition_on_previous_text",
            )

    def rules(self, settings: SpeechSettings) -> FallbackRules:
        """The temperatures and thresholds that apply to the request. settings: the checkpoint's thresholds.

        A threshold that the request leaves out is the checkpoint's, or the default of the published code. The
        checkpoint's compression ratio applies to token ids, as in `transformers`; any other applies to the text.
        """
        falls_back = len(self.attempts) > 1
        no_speech = _first(self.no_speech_threshold, settings.no_speech_threshold, NO_SPEECH)
        if no_speech is not None and no_speech >= 1:
            no_speech = None
        of_text = self.compression_ratio_threshold
        of_tokens = settings.compression_ratio_threshold if of_text is None else None
        if of_text is None and of_tokens is None:
            of_text = COMPRESSION_RATIO
        judges_logprobs = falls_back or no_speech is not None
        return FallbackRules(
            self.attempts,
            of_tokens if falls_back else None,
            _first(self.logprob_threshold, settings.logprob_threshold, LOGPROB) if judges_logprobs else None,
            no_speech,
            of_text if falls_back else None,
        )

    def cost(self, model: ServedModel, seconds: float | None = None) -> Cost:
        """Upper bounds of the request's work while its recording is read, for admission.

        seconds: length of the recording; None before it is read. The length of a compressed file is then unknown, so
            that the cost has neither samples nor windows.
        The count assumes that a window starts at least one encoder token after the one before it, or in the batched
        mode at least half a window after it.
        """
        recording = self.file.reading_bytes
        if seconds is None:
            seconds = self.file.max_seconds(self.max_seconds)
        if seconds is None:
            return Cost(len(self.prompt) + len(self.hotwords), 0, 1, recording_bytes=recording)
        window_frames = FRAMES_PER_TOKEN * model.info.source_tokens
        step = window_frames // 2 if self.batched else FRAMES_PER_TOKEN
        windows = 2 + math.ceil((seconds * FRAMES_PER_SECOND + window_frames) / step)
        samples = math.ceil(seconds * second_bytes(model.info.num_mels))
        return self._cost(model, windows, recording + samples)

    def cost_after_reading(self, model: ServedModel, seconds: float) -> Cost:
        """Work and memory of decoding a recording, for admission, after its samples have become frames.

        The number of windows is an estimate, for windows that start half a window apart. If there are more windows, the
        sequential mode reserves their memory when it reaches them.
        """
        windows = self.expected_windows(model, seconds)
        return self._cost(model, windows, math.ceil(seconds * FRAMES_PER_SECOND) * FLOAT_BYTES * model.info.num_mels)

    def expected_windows(self, model: ServedModel, seconds: float) -> int:
        """Number of windows that `cost_after_reading` counts. The batched mode never has more windows."""
        window_frames = FRAMES_PER_TOKEN * model.info.source_tokens
        return 2 + math.ceil((seconds * FRAMES_PER_SECOND + window_frames) / (window_frames // 2))

    def _cost(self, model: ServedModel, windows: int, recording_bytes: int) -> Cost:
        """The cost of decoding. Every window needs memory for its text; only windows in progress need it for frames."""
        info = model.info
        at_once = min(BATCH_WINDOWS, windows) if self.batched else 1
        window_bytes = FLOAT_BYTES * FRAMES_PER_TOKEN * info.source_tokens * info.num_mels
        if self.with_words:
            window_bytes += FLOAT_BYTES * info.source_tokens * info.context_tokens
        return Cost(
            len(self.prompt) + len(self.hotwords),
            at_once * (info.source_tokens + info.context_tokens),
            at_once * (self.num_beams or info.generation.num_beams or 1),
            windows * info.context_tokens,
            recording_bytes=recording_bytes + at_once * window_bytes,
        )


class SpokenToken(NamedTuple):
    """A text token of a transcript. data: bytes of the token, which may be a part of a character."""

    data: bytes
    logprob: float


@dataclass(frozen=True)
class Transcript:
    """The text of a recording.

    text: the whole text, without white space at both ends.
    language: code of the spoken language, None if the model supports only English, `und` if the language is not known.
    seconds: length of the recording.
    lines: the segments that have text, with their times.
    logprobs: the text tokens with their log-probabilities; empty if the request does not ask for them.
    """

    text: str
    language: str | None
    seconds: float
    lines: list[SubtitleLine]
    logprobs: list[SpokenToken] = field(default_factory=list)


def _first(*values: float | None) -> float | None:
    """The first value that is not None; None if there is none."""
    return next((value for value in values if value is not None), None)
