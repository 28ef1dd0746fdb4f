"""Transcribe a recording with a decoder that writes text without times: cut it at pauses, and decode each window.

The encoder reads samples instead of frames. Only the start and end of a window are known, so each window becomes one
line of the transcript. Silent windows have no text. See docs/decisions/0163-speech-without-times.md.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from server.audio import frames as audio
from server.audio.frames import FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, Samples
from server.audio.voice import VoiceActivity
from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.descriptions import LOG_MEL_BANDS
from server.ipc.wire.encode_messages import FLOAT_BYTES
from server.ipc.wire.generate_messages import Generate, GenerateRow, Hypothesis
from server.ipc.wire.logprobs import Logprobs
from server.ipc.wire.params import GenerationParams
from server.operations.cost import Cost
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.operations.speech.recording_frames import log_mel_frames, read_samples
from server.operations.speech.sample_windows import (
    UNKNOWN_LANGUAGE,
    WINDOWS_AT_ONCE,
    SampleSpan,
    sample_spans,
    window_bytes,
    window_frames,
)
from server.operations.speech.speech_fallback import FallbackRules
from server.operations.speech.speech_windows import finished_rows, sampled, window_params
from server.operations.speech.transcribe_spec import SpokenToken, TranscribeSpec, Transcript
from server.operations.speech.voice_filter import KeptFrames
from server.text.speech.subtitles import SubtitleLine
from server.text.speech.untimed_speech import UntimedSpeech
from server.text.tokens.token_bytes import NoTokenBytes

MIN_NEW_TOKENS = 8
_MAX_SEED = (1 << 64) - 1


async def transcribe_untimed(
    runtime: Runtime,
    call: Call,
    model: ServedModel,
    speech: UntimedSpeech,
    spec: TranscribeSpec,
    emit: Callable[[str], None] | None = None,
) -> Transcript:
    """Transcribe a recording. The arguments and errors are those of `transcribe`.

    Options without an effect on this model, such as `prompt`, are dropped, and named in the header
    `X-Ignored-Parameters`.
    """
    call.ignore(dropped_untimed(model, speech, spec))
    language = written_language(model, speech, spec)
    seconds = spec.file.max_seconds(spec.max_seconds)
    runtime.admission.check_size(_cost(model, spec, seconds, spec.file.reading_bytes), "file")
    longest = window_frames(model.info)
    # The memory for reading is not reserved: one recording is read at a time.
    async with runtime.recordings.turn(call, call.limits, "earlier recordings were read"):
        samples = await runtime.pools.audio.run(lambda: read_samples(runtime, spec), call)
        seconds = len(samples) / SAMPLE_RATE
        spec.file.drop()
        cost = _cost(model, spec, seconds, 0)
        runtime.admission.check_size(cost, "file")
        await runtime.admission.admit_in_turn(call, model, cost, "file")
        waves = await runtime.pools.audio.run(lambda: audio.split_samples(samples, longest), call)
        frames = await log_mel_frames(runtime, call, model, waves)
    frames = frames[: audio.num_frames(len(samples))]
    activity = await runtime.pools.audio.run(lambda: VoiceActivity(frames, len(frames)), call)
    kept: KeptFrames | None = None
    if spec.voice_filter is not None:
        spoken = spec.voice_filter.spans(activity)
        if not spoken:
            return Transcript("", language, seconds, [])
        kept = await runtime.pools.audio.run(partial(KeptFrames, frames, spoken), call)
        frames, samples = kept.frames, _joined(samples, spoken)
    spans = await runtime.pools.audio.run(lambda: sample_spans(samples, frames, model.info), call)
    if kept is None:
        spans = [span for span in spans if not activity.is_silent(span[0] // HOP_SAMPLES, -(-span[1] // HOP_SAMPLES))]
    transcription = _UntimedTranscription(
        call, model, speech, spec, language, spec.seed if spec.seed is not None else secrets.randbits(63)
    )
    for at in range(0, len(spans), WINDOWS_AT_ONCE):
        some = spans[at : at + WINDOWS_AT_ONCE]
        sources = await runtime.pools.audio.run(partial(_sources, samples, some, speech.normalizes), call)
        for span, best in zip(some, await transcription.decoded(some, sources), strict=True):
            text = transcription.add(span, best)
            if emit is not None and text:
                emit(text)
    lines = transcription.lines if kept is None else [kept.restored(line) for line in transcription.lines]
    return Transcript(transcription.text, language, seconds, lines, transcription.logprobs)


@dataclass
class _UntimedTranscription:
    """The transcript so far, as text and as lines. seed: random seed of the request; each window adds its start."""

    call: Call
    model: ServedModel
    speech: UntimedSpeech
    spec: TranscribeSpec
    language: str
    seed: int

    def __post_init__(self) -> None:
        self.text = ""
        self.lines: list[SubtitleLine] = []
        self.logprobs: list[SpokenToken] = []
        self._params = _params(self.model, self.spec)
        self._separator = self.speech.separator(self.language)

    async def decoded(self, spans: Sequence[SampleSpan], sources: list[bytes]) -> list[Hypothesis]:
        """Decode windows, and return the best hypothesis of each. sources: bytes of the windows' samples.

        Raises the error of a failed window, and DeadlineExceeded.
        """
        info = self.model.info
        start = self._prompt()
        room = info.context_tokens - len(start)
        limit = min(info.generation.max_new_tokens or room, room)
        rows = [
            GenerateRow(
                self.call.next_id(), self._max_tokens(end - first, limit), place, start, (self.seed + first) & _MAX_SEED
            )
            for place, (first, end) in enumerate(spans)
        ]
        message = Generate(self.model.name, self._params, [], rows, frames=sources)
        return [ended.hypotheses[0] for ended in await finished_rows(self.call, message)]

    def _prompt(self) -> list[int]:
        """The decoder's prompt: start tokens, then the tokens that name the language.

        As in transformers, start tokens are left out if the tokens of the language begin with them.
        """
        start, prompt = self.model.info.generation.decoder_start_token_ids, self.speech.prompts.get(self.language, ())
        return [*prompt] if prompt[: len(start)] == tuple(start) else [*start, *prompt]

    def _max_tokens(self, samples: int, limit: int) -> int:
        """Maximum number of new tokens of a window. samples: length of the window. limit: maximum for any window."""
        if self.speech.tokens_per_second is None:
            return limit
        return min(limit, max(MIN_NEW_TOKENS, math.ceil(samples / SAMPLE_RATE * self.speech.tokens_per_second)))

    def add(self, span: SampleSpan, best: Hypothesis) -> str:
        """Add the text of a window, and return the text that is added, with a separator before it if needed."""
        tokenizer = self.model.tokenizer
        logprobs = list(Logprobs(best.logprobs or ()).own())
        token_ids = best.token_ids[:-1] if best.stop_token_id is not None else best.token_ids
        text = tokenizer.decode(token_ids, skip_special_tokens=True).strip()
        if not text:
            return ""
        mean = float(np.mean(logprobs)) if logprobs else None
        start, end = span[0] / SAMPLE_RATE, span[1] / SAMPLE_RATE
        temperature = self.spec.attempts[0]
        self.lines.append(
            SubtitleLine(
                start, end, self._separator + text, token_ids, span[0] // HOP_SAMPLES, mean, temperature=temperature
            )
        )
        if self.spec.with_logprobs:
            self.logprobs += [
                SpokenToken(data, logprob)
                for token, logprob in zip(token_ids, logprobs, strict=False)
                if (data := self._bytes_of(token))
            ]
        added = self._separator + text if self.text else text
        self.text += added
        return added

    def _bytes_of(self, token: int) -> bytes:
        """The bytes of a text token; empty for a special token."""
        tokenizer = self.model.tokenizer
        try:
            return tokenizer.token_bytes.by_id[token]
        except NoTokenBytes:
            return b"" if token in tokenizer.special_ids else tokenizer.decode([token]).encode()


def _params(model: ServedModel, spec: TranscribeSpec) -> GenerationParams:
    temperature = spec.attempts[0]
    found = window_params(
        model,
        FallbackRules(),
        num_beams=1 if temperature else spec.num_beams,
        timestamps=None,
        alignment=None,
        with_logprobs=spec.with_logprobs,
        stream=False,
    )
    return sampled(found, temperature) if temperature else found


def written_language(model: ServedModel, speech: UntimedSpeech, spec: TranscribeSpec) -> str:
    """Code of the language that the decoder writes; `und` for a model that is told no language.

    Raises InvalidRequest if the model has to be told the language, and the request names none, or an unsupported one.
    """
    if not speech.prompts:
        return UNKNOWN_LANGUAGE
    known = ", ".join(speech.prompts)
    if spec.language is None:
        raise InvalidRequest(
            f"`language` is required: the model `{model.name}` does not detect it; it supports {known}", "language"
        )
    code = speech.language(spec.language)
    if code is None:
        raise InvalidRequest(
            f"`language` is not supported by the model `{model.name}`; it supports {known}", "language"
        )
    return code


def dropped_untimed(model: ServedModel, speech: UntimedSpeech, spec: TranscribeSpec) -> list[str]:
    """Names of the sent fields that have no effect on this model, and are ignored.

    Raises InvalidRequest for contradicting options, and for fields that require times or repeated decoding.
    """
    spec.check()
    refused = {
        "temperature_increment_on_fallback": len(spec.temperatures or ()) > 1,
        "compression_ratio_threshold": spec.compression_ratio_threshold is not None,
        "logprob_threshold": spec.logprob_threshold is not None,
        "no_speech_threshold": spec.no_speech_threshold not in (None, 1),
        "condition_on_previous_text": bool(spec.condition_on_previous_text),
        spec.words_param: spec.with_words,
    }
    for name, is_sent in refused.items():
        if is_sent:
            raise InvalidRequest(f"`{name}` is not supported: the model `{model.name}` writes text without times", name)
    dropped = {
        "prompt": spec.prompt.strip(),
        "hotwords": spec.hotwords.strip(),
        "language": None if speech.prompts else spec.language,
        "languages": spec.languages,
    }
    return [name for name, value in dropped.items() if value]


def _sources(samples: Samples, spans: Sequence[SampleSpan], normalizes: bool) -> list[bytes]:
    """The samples of windows as bytes, as messages to the worker contain them. normalizes: scale each window."""
    return [window_bytes(samples, span, normalizes) for span in spans]


def _joined(samples: Samples, spans: Sequence[tuple[int, int]]) -> Samples:
    """Join the samples of some parts of a recording. spans: (first frame, frame after the last one) of each part."""
    return np.concatenate([samples[start * HOP_SAMPLES : end * HOP_SAMPLES] for start, end in spans])


def _cost(model: ServedModel, spec: TranscribeSpec, seconds: float | None, reading_bytes: int) -> Cost:
    """Upper bounds of the request's work, for admission.

    seconds: length of the recording; None if it is compressed and not read yet.
    reading_bytes: memory for reading the file; 0 after it was read.
    """
    if seconds is None:
        return Cost(0, 0, 1, recording_bytes=reading_bytes)
    info = model.info
    window_seconds = window_frames(info) / FRAMES_PER_SECOND
    windows = 1 + math.ceil(2 * seconds / window_seconds)
    at_once = min(WINDOWS_AT_ONCE, windows)
    # The samples, their copies without silence and in the messages, and the frames.
    copied = at_once * window_seconds + (seconds if spec.voice_filter is not None else 0)
    memory = seconds * audio.second_bytes(LOG_MEL_BANDS) + FLOAT_BYTES * SAMPLE_RATE * copied
    return Cost(
        0,
        at_once * (info.source_tokens + info.context_tokens),
        at_once * (spec.num_beams or info.generation.num_beams or 1),
        windows * info.context_tokens,
        recording_bytes=reading_bytes + math.ceil(memory),
    )
