"""Transcribe a recording with a CTC head: cut it at pauses, compute the labels of each window, and read their words.

Labels depend only on their window, so several windows are computed at a time. There is no decoder, so there are no
prompts, languages, temperatures or beams. See docs/decisions/0153-ctc-heads.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from server.audio.frames import HOP_SAMPLES, SAMPLE_RATE, Samples
from server.audio.silence import loudness_frames
from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.encode_messages import FLOAT_BYTES, Encode, EncodeItem
from server.operations.cost import Cost
from server.operations.encode import encoded_items
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.operations.speech.recording_frames import read_samples
from server.operations.speech.sample_windows import (
    UNKNOWN_LANGUAGE,
    WINDOWS_AT_ONCE,
    SampleSpan,
    sample_spans,
    window_bytes,
    window_frames,
)
from server.operations.speech.transcribe_spec import TranscribeSpec, Transcript
from server.text.speech.ctc import CtcToken, CtcTokens
from server.text.speech.subtitles import SpokenWord, SubtitleLine
from server.text.tokens.tokenizer import Tokenizer

PAUSE_SECONDS, LINE_SECONDS = 0.6, 8.0
"""A line ends at a pause of at least PAUSE_SECONDS, and before a word by which it would exceed LINE_SECONDS."""
_LABEL_BYTES = 32
"""Bytes of memory per label: for its id and log-probability, and on average for tokens, words and lines."""


async def transcribe_ctc(
    runtime: Runtime,
    call: Call,
    model: ServedModel,
    tokens: CtcTokens,
    spec: TranscribeSpec,
    emit: Callable[[str], None] | None = None,
) -> Transcript:
    """Transcribe a recording. The arguments and errors are those of `transcribe`.

    Options for a decoder, such as `prompt`, are dropped, and named in the header `X-Ignored-Parameters`.
    """
    call.ignore(dropped_by_ctc(model, spec))
    seconds = spec.file.max_seconds(spec.max_seconds)
    runtime.admission.check_size(_cost(model, seconds, spec.file.reading_bytes), "file")
    # The memory for reading is not reserved: one recording is read at a time.
    async with runtime.recordings.turn(call, call.limits, "earlier recordings were read"):
        samples = await runtime.pools.audio.run(lambda: read_samples(runtime, spec), call)
        seconds = len(samples) / SAMPLE_RATE
        spec.file.drop()
        cost = _cost(model, seconds, 0)
        runtime.admission.check_size(cost, "file")
        await runtime.admission.admit_in_turn(call, model, cost, "file")
    spans = await runtime.pools.audio.run(lambda: sample_spans(samples, loudness_frames(samples), model.info), call)
    writer = _Writer(model.tokenizer, tokens, model.info.samples_per_token / SAMPLE_RATE, seconds)
    for at in range(0, len(spans), WINDOWS_AT_ONCE):
        some = spans[at : at + WINDOWS_AT_ONCE]
        items = await runtime.pools.audio.run(partial(_items, samples, some, tokens), call)
        for (start, _), found in zip(
            some, await encoded_items(call, Encode(call.next_id(), model.name, "ctc", items)), strict=True
        ):
            text = writer.add(start, found.token_ids, np.frombuffer(found.values, dtype="<f4"))
            if emit is not None and text:
                emit(text)
    return Transcript(writer.text, UNKNOWN_LANGUAGE, seconds, writer.lines)


@dataclass
class _Writer:
    """Collects the text of windows, and divides it into lines with times.

    label_seconds: time between two labels. seconds: length of the recording.
    """

    tokenizer: Tokenizer
    tokens: CtcTokens
    label_seconds: float
    seconds: float

    def __post_init__(self) -> None:
        self.lines: list[SubtitleLine] = []
        self.text = ""

    def add(self, start: int, labels: Sequence[int], logprobs: np.ndarray) -> str:
        """Add the labels of a window, and return the text that is added.

        start: index of the window's first sample. labels: its likeliest labels. logprobs: their log-probabilities.
        """
        words = self.tokens.words(self.tokens.collapse(labels))
        texts = [self.tokenizer.decode([token.token_id for token in word]).strip() for word in words]
        spoken = [(word, text) for word, text in zip(words, texts, strict=True) if text]
        line: list[tuple[list[CtcToken], str]] = []
        mean = float(logprobs.mean())
        for word, text in spoken:
            if line and self._ends(line, word):
                self._end_line(line, start, mean)
                line = []
            line.append((word, text))
        if line:
            self._end_line(line, start, mean)
        joined = " ".join(text for _, text in spoken)
        added = f" {joined}" if joined and self.text else joined
        self.text += added
        return added

    def _ends(self, line: Sequence[tuple[list[CtcToken], str]], word: Sequence[CtcToken]) -> bool:
        """Whether a line ends before the next word, because of a pause or its length."""
        pause = (word[0].first - line[-1][0][-1].end) * self.label_seconds
        length = (word[-1].end - line[0][0][0].first) * self.label_seconds
        return pause >= PAUSE_SECONDS or length > LINE_SECONDS

    def _end_line(self, line: Sequence[tuple[list[CtcToken], str]], start: int, mean_logprob: float) -> None:
        def time(label: int) -> float:
            return min(round(start / SAMPLE_RATE + label * self.label_seconds, 3), self.seconds)

        words = [SpokenWord(text, time(word[0].first), time(word[-1].end)) for word, text in line]
        text = "".join(f" {word.text}" for word in words)
        ids = [token.token_id for word, _ in line for token in word]
        self.lines.append(
            SubtitleLine(words[0].start, words[-1].end, text, ids, start // HOP_SAMPLES, mean_logprob, words=words)
        )


def dropped_by_ctc(model: ServedModel, spec: TranscribeSpec) -> list[str]:
    """Names of the request's fields that are ignored, because a CTC head has no decoder.

    Raises InvalidRequest for fields that would change the result and cannot be ignored, such as `num_beams`.
    """
    spec.check()
    refused = {
        "num_beams": (spec.num_beams or 1) > 1,
        "temperature_increment_on_fallback": len(spec.temperatures or ()) > 1,
        "compression_ratio_threshold": spec.compression_ratio_threshold is not None,
        "logprob_threshold": spec.logprob_threshold is not None,
        "no_speech_threshold": spec.no_speech_threshold not in (None, 1),
        "condition_on_previous_text": bool(spec.condition_on_previous_text),
    }
    for name, is_sent in refused.items():
        if is_sent:
            raise InvalidRequest(
                f"`{name}` is not supported: the model `{model.name}` has a CTC head, no decoder", name
            )
    dropped = {
        "prompt": spec.prompt.strip(),
        "hotwords": spec.hotwords.strip(),
        "language": spec.language,
        "languages": spec.languages,
        "temperature": spec.attempts[0],
        "vad_filter": spec.voice_filter is not None and not spec.batched,
        "include": spec.with_logprobs and not spec.with_times,
    }
    return [name for name, value in dropped.items() if value]


def _cost(model: ServedModel, seconds: float | None, reading_bytes: int) -> Cost:
    """Upper bounds of the request's work, for admission.

    seconds: length of the recording; None if it is not known before decoding. reading_bytes: memory for decoding it.
    """
    if seconds is None:
        return Cost(0, 0, 1, recording_bytes=reading_bytes)
    labels = math.ceil(seconds * SAMPLE_RATE / model.info.samples_per_token)
    window = min(math.ceil(seconds * SAMPLE_RATE), window_frames(model.info) * HOP_SAMPLES)
    samples = math.ceil(seconds * SAMPLE_RATE) + WINDOWS_AT_ONCE * window
    memory = reading_bytes + FLOAT_BYTES * samples + _LABEL_BYTES * labels
    return Cost(0, min(labels, WINDOWS_AT_ONCE * (window // model.info.samples_per_token)), 1, recording_bytes=memory)


def _items(samples: Samples, spans: Sequence[SampleSpan], tokens: CtcTokens) -> list[EncodeItem]:
    """The engine items of windows. spans: first sample and end of each window."""
    return [EncodeItem([], samples=window_bytes(samples, span, tokens.normalizes)) for span in spans]
