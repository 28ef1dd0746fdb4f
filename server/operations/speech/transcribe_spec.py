"""The specification of a transcription, its cost, and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass

from server.audio.frames import FRAMES_PER_SECOND, FRAMES_PER_TOKEN, second_bytes
from server.errors import InvalidRequest
from server.operations.cost import Cost
from server.operations.runtime import ServedModel
from server.operations.speech.recording_file import RecordingFile
from server.operations.speech.speech_fallback import FallbackRules, temperatures
from server.text.speech.speech import SpeechTask
from server.text.speech.speech_settings import SpeechSettings
from server.text.speech.subtitles import SubtitleLine

BATCH_WINDOWS = 16
"""Windows that are decoded at the same time in the batched mode."""
COMPRESSION_RATIO, LOGPROB = 2.4, -1.0
"""Default thresholds of temperature fallback. Source: the code published with Radford et al. 2022."""
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class TranscribeSpec:
    """Ask for the text of a recording.

    file: the audio file.
    max_seconds: longest recording that is accepted.
    task: write in the language that is spoken, or translate to English.
    language: code or English name of the spoken language; None to detect it.
    prompt: text that came before the recording.
    temperature: 0 for the likeliest text.
    temperature_increment: with fallback, step from `temperature` to 1; None for one temperature.
    compression_ratio_threshold, logprob_threshold, no_speech_threshold: see `FallbackRules`.
        None for the checkpoint's values.
    condition_on_previous_text: the text so far precedes each window; None for the checkpoint's choice.
    batched: cut the recording at silences, and decode the windows at the same time.
    with_times: compute the times of each part. Recordings longer than one window always need them.
    with_words: compute the times of each word; requires `with_times`.
    with_logprobs: compute mean log-probabilities and the probability of no speech.
    """

    file: RecordingFile
    max_seconds: float
    task: SpeechTask = "transcribe"
    model: str | None = None
    language: str | None = None
    prompt: str = ""
    temperature: float = 0.0
    num_beams: int | None = None
    seed: int | None = None
    temperature_increment: float | None = None
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    condition_on_previous_text: bool | None = None
    batched: bool = False
    with_times: bool = False
    with_words: bool = False
    with_logprobs: bool = False

    def check(self) -> None:
        """Raise InvalidRequest for options that contradict each other or would have no effect."""
        if self.temperature and (self.num_beams or 1) > 1:
            raise InvalidRequest("`num_beams` cannot be combined with a `temperature`", "num_beams")
        if self.temperature_increment is None:
            if self.compression_ratio_threshold is not None:
                raise InvalidRequest(
                    "`compression_ratio_threshold` requires `temperature_increment_on_fallback`",
                    "compression_ratio_threshold",
                )
            if self.logprob_threshold is not None and self.no_speech_threshold is None:
                raise InvalidRequest(
                    "`logprob_threshold` requires `temperature_increment_on_fallback` or `no_speech_threshold`",
                    "logprob_threshold",
                )
        if self.batched and self.condition_on_previous_text:
            raise InvalidRequest(
                "`condition_on_previous_text` cannot be combined with `chunking_strategy`: its windows are decoded at "
                "the same time",
                "condition_on_previous_text",
            )

    def rules(self, settings: SpeechSettings) -> FallbackRules:
        """The rules of the request; those that it does not set come from the checkpoint."""
        falls_back = self.temperature_increment is not None
        no_speech = _first(self.no_speech_threshold, settings.no_speech_threshold)
        judges_logprobs = falls_back or no_speech is not None
        return FallbackRules(
            temperatures(self.temperature, self.temperature_increment),
            _first(self.compression_ratio_threshold, settings.compression_ratio_threshold, COMPRESSION_RATIO)
            if falls_back
            else None,
            _first(self.logprob_threshold, settings.logprob_threshold, LOGPROB) if judges_logprobs else None,
            no_speech,
        )

    def cost(self, model: ServedModel, seconds: float | None = None) -> Cost:
        """Upper bounds of the work while the recording is read; see `Cost`. One recording is read at a time.

        seconds: length of the recording; None before it is read. The samples of a compressed file are then
            left out.
        A window starts at least one encoder token after the last one, or in the batched mode half a window after it.
        """
        recording = self.file.reading_bytes
        if seconds is None:
            seconds = self.file.max_seconds(self.max_seconds)
        if seconds is None:
            return Cost(len(self.prompt), 0, 1, recording_bytes=recording)
        window_frames = FRAMES_PER_TOKEN * model.info.source_tokens
        step = window_frames // 2 if self.batched else FRAMES_PER_TOKEN
        windows = 2 + math.ceil((seconds * FRAMES_PER_SECOND + window_frames) / step)
        samples = math.ceil(seconds * second_bytes(model.info.num_mels))
        return self._cost(model, windows, recording + samples)

    def cost_after_reading(self, model: ServedModel, seconds: float) -> Cost:
        """Work of a recording whose samples have become frames: the text of its windows takes memory, and the frames.

        The mean distance of two windows counts as half a window; further windows are reserved as they come.
        """
        windows = self.expected_windows(model, seconds)
        return self._cost(model, windows, math.ceil(seconds * FRAMES_PER_SECOND) * _FLOAT_BYTES * model.info.num_mels)

    def expected_windows(self, model: ServedModel, seconds: float) -> int:
        """Number of windows in `cost_after_reading`; in the batched mode, there are no more."""
        window_frames = FRAMES_PER_TOKEN * model.info.source_tokens
        return 2 + math.ceil((seconds * FRAMES_PER_SECOND + window_frames) / (window_frames // 2))

    def _cost(self, model: ServedModel, windows: int, recording_bytes: int) -> Cost:
        """The cost of decoding. Of a window that is not in progress, only the text takes memory."""
        info = model.info
        at_once = min(BATCH_WINDOWS, windows) if self.batched else 1
        window_bytes = _FLOAT_BYTES * FRAMES_PER_TOKEN * info.source_tokens * info.num_mels
        if self.with_words:
            window_bytes += _FLOAT_BYTES * info.source_tokens * info.context_tokens
        return Cost(
            len(self.prompt),
            at_once * (info.source_tokens + info.context_tokens),
            at_once * (self.num_beams or info.generation.num_beams or 1),
            windows * info.context_tokens,
            recording_bytes=recording_bytes + at_once * window_bytes,
        )


@dataclass(frozen=True)
class Transcript:
    """The text of a recording.

    text: white space at both ends removed.
    language: code of the spoken language, None if the model supports only English, `und` if the language is not known.
    seconds: length of the recording.
    lines: the parts of the text that are not empty, with times.
    """

    text: str
    language: str | None
    seconds: float
    lines: list[SubtitleLine]


def _first(*values: float | None) -> float | None:
    """The first value that is not None."""
    return next((value for value in values if value is not None), None)
