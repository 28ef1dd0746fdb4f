"""Transcribe or translate a recording: compute its log-mel frames in the worker, and decode windows of them.

Sequential mode: each window starts where the text of the window before it has ended, as in `transformers` 5. Batched
mode: the recording is cut at silences, and several windows are decoded at the same time. Silent windows have no text.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from server.audio import frames as audio
from server.audio.frames import FRAMES_PER_SECOND, FRAMES_PER_TOKEN, SAMPLE_RATE
from server.audio.silence import cut_at_silences
from server.audio.voice import Span, VoiceActivity, overlap
from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.params import GenerationParams, SpeechAlignment, TimestampRules
from server.operations.cost import NEW_TOKEN_BYTES
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.operations.speech.batched_windows import decode_windows
from server.operations.speech.recording_frames import log_mel_frames, read_samples
from server.operations.speech.speech_fallback import CONDITION_TEMPERATURE, FallbackRules
from server.operations.speech.speech_windows import Window, WindowDecoder, WindowResult, window_params
from server.operations.speech.transcribe_ctc import dropped_by_ctc, transcribe_ctc
from server.operations.speech.transcribe_spec import BATCH_WINDOWS, TranscribeSpec, Transcript
from server.operations.speech.transcribe_untimed import dropped_untimed, transcribe_untimed, written_language
from server.operations.speech.transcript_text import (
    TextStream,
    lines_of,
    text_of,
    token_logprobs,
    transcript_text,
)
from server.operations.speech.voice_filter import KeptFrames
from server.text.speech.speech import (
    SpeechSegment,
    SpeechTokens,
    certain_tokens,
    split_whole_window,
    split_window,
    text_end,
)

MIN_REST_FRAMES = FRAMES_PER_SECOND
"""Least speech after the last timestamp of a window for which the rest of the window is decoded (1 s)."""


async def transcribe(
    runtime: Runtime, call: Call, spec: TranscribeSpec, emit: Callable[[str], None] | None = None
) -> Transcript:
    """Transcribe a recording, or translate it to English.

    emit: called with each part of the text as soon as it is final. All parts, joined, are the text of the result.
    Raises InvalidRequest for an option that the model does not have, or a file that is no readable recording;
    RequestTooLarge; the error of a failed sequence; and DeadlineExceeded if the deadline passes before the last window
    is complete.
    """
    operation = "translate_speech" if spec.task == "translate" else "transcribe"
    model = runtime.candidates(spec.model, operation)[0]
    if model.text.ctc is not None:
        return await transcribe_ctc(runtime, call, model, model.text.ctc, spec, emit)
    if model.text.untimed_speech is not None:
        return await transcribe_untimed(runtime, call, model, model.text.untimed_speech, spec, emit)
    tokens = model.text.speech
    assert tokens is not None, "a model that transcribes has speech tokens"
    spec.check()
    language = _language(spec, tokens, model)
    runtime.admission.check_size(spec.cost(model), "file")
    allowed = _languages(spec, tokens, model)
    room = model.info.context_tokens // 2 - 1
    hotwords = (await _text_ids(runtime, call, model, tokens, spec.hotwords, "hotwords"))[:room]
    prompt = await _text_ids(runtime, call, model, tokens, spec.prompt, "prompt")
    window_frames = FRAMES_PER_TOKEN * model.info.source_tokens
    # The memory for reading is not reserved: one recording is read at a time.
    async with runtime.recordings.turn(call, call.limits, "earlier recordings were read"):
        waves, num_samples = await runtime.pools.audio.run(lambda: _waves(runtime, spec, window_frames), call)
        seconds = num_samples / SAMPLE_RATE
        runtime.admission.check_size(spec.cost(model, seconds), "file")
        spec.file.drop()
        await runtime.admission.admit_in_turn(call, model, spec.cost_after_reading(model, seconds), "file")
        frames = await log_mel_frames(runtime, call, model, waves)
    total_frames = min(audio.num_frames(num_samples), len(frames))
    activity = await runtime.pools.audio.run(lambda: VoiceActivity(frames, total_frames), call)
    if activity.is_silent(0, total_frames):
        return Transcript("", language, seconds, [])
    kept: KeptFrames | None = None
    if spec.voice_filter is not None:
        spans = spec.voice_filter.spans(activity)
        if not spans:
            return Transcript("", language, seconds, [])
        kept = await runtime.pools.audio.run(lambda: KeptFrames(frames, spans), call)
        frames, total_frames = kept.frames, len(kept.frames)
    decoded_seconds = seconds if kept is None else total_frames / FRAMES_PER_SECOND

    settings, rules = model.text.speech_settings, spec.rules(model.text.speech_settings)
    is_long = decoded_seconds > window_frames / FRAMES_PER_SECOND
    with_times = spec.with_times or (is_long and not spec.batched)
    streams_tokens = emit is not None and rules.accepts_everything and not spec.batched
    decoder = WindowDecoder(
        call,
        model,
        frames,
        total_frames,
        _params(spec, model, tokens, rules, with_times, streams_tokens),
        rules,
        _seed(spec),
        runtime.pools.tokenize,
        tokens.no_speech if rules.no_speech is not None or spec.with_logprobs else None,
        lambda token_ids: text_of(token_ids, tokens, model.tokenizer),
    )
    if language is None and allowed:
        first = Window(0, min(window_frames, total_frames), [tokens.start])
        found = await decoder.first_token(first, sorted(allowed))
        language = next(code for code, token in tokens.languages.items() if token == found)
    condition = spec.condition_on_previous_text
    transcription = _Transcription(
        decoder,
        tokens,
        tokens.prefix(language, spec.task, with_times),
        prompt,
        hotwords,
        with_times=with_times,
        conditions=not spec.batched and (settings.condition_on_previous_text if condition is None else condition),
        stream=None if emit is None else TextStream(model.tokenizer, emit),
        expected_windows=spec.expected_windows(model, seconds),
        reserve=lambda num_bytes: runtime.admission.extend(call, num_bytes, "text", "file"),
        is_silent=activity.is_silent if kept is None else lambda start, end: False,
        speech=activity.speech if kept is None else kept.moved(activity.speech),
    )
    if spec.batched:
        await transcription.batched()
    else:
        await transcription.sequential(streams_tokens)
    if transcription.stream is not None:
        transcription.stream.finish()
    parts = transcription.parts
    spoken = "en" if spec.task == "translate" else language
    lines = await runtime.pools.tokenize.run(
        lambda: lines_of(parts, decoded_seconds, tokens, model.tokenizer, spoken, spec.with_words), call
    )
    if kept is not None:
        lines = [kept.restored(line) for line in lines]
    logprobs = token_logprobs(parts, tokens, model.tokenizer) if spec.with_logprobs else []
    return Transcript(transcript_text(parts, tokens, model.tokenizer), language, seconds, lines, logprobs)


def check(runtime: Runtime, spec: TranscribeSpec) -> list[str]:
    """Check a request before its recording has arrived. Returns names of fields that the model ignores.

    Raises InvalidRequest for an option that the model does not have.
    """
    model = runtime.candidates(spec.model, "transcribe")[0]
    if model.text.ctc is not None:
        return dropped_by_ctc(model, spec)
    if model.text.untimed_speech is not None:
        written_language(model, model.text.untimed_speech, spec)
        return dropped_untimed(model, model.text.untimed_speech, spec)
    assert model.text.speech is not None
    spec.check()
    _language(spec, model.text.speech, model)
    return []


@dataclass
class _Transcription:
    """Decodes the windows of a recording and collects their segments.

    request_prefix: token ids of the decoder's prompt from the start token on.
    prompt: token ids of the request's prompt. hotwords: token ids of words that precede every window.
    with_times: whether the decoder writes timestamps.
    conditions: whether the text so far precedes each window.
    stream: receives tokens whose text is final; None if nothing is streamed.
    parts: the segments so far, each with the first frame and the result of its window.
    expected_windows: number of windows whose memory is reserved already.
    reserve: reserves memory, in bytes, for a further window.
    is_silent: returns whether a range of frames is silent, so that it has no text.
    speech: the parts of the recording that may be speech, in frames.
    """

    decoder: WindowDecoder
    tokens: SpeechTokens
    request_prefix: list[int]
    prompt: list[int]
    hotwords: Sequence[int] = ()
    with_times: bool = True
    conditions: bool = False
    stream: TextStream | None = None
    parts: list[tuple[SpeechSegment, int, WindowResult]] = field(default_factory=list)
    expected_windows: int = 0
    reserve: Callable[[int], None] = lambda num_bytes: None
    is_silent: Callable[[int, int], bool] = lambda start, end: False
    speech: Sequence[Span] = ()

    def __post_init__(self) -> None:
        self._num_windows = 0

    def _window(self, start: int, end: int, before: Sequence[int]) -> Window:
        """Create a window with its decoder prompt. before: tokens of the text that precedes the window.

        Hotwords and this text together get at most half of the context. If they are longer, the first tokens of the
        text are left out.
        """
        room = self.decoder.model.info.context_tokens // 2 - 1 - len(self.hotwords)
        before = [*self.hotwords, *before[max(len(before) - room, 0) :]]
        if not before or self.tokens.previous is None:
            return Window(start, end, self.request_prefix)
        return Window(start, end, [self.tokens.previous, *before, *self.request_prefix], 1 + len(before))

    async def sequential(self, streams_tokens: bool) -> None:
        """Decode windows one after another. Each starts where the text of the window before it ends.

        streams_tokens: pass text on before its window is complete.
        """
        start, conditions, total_frames = 0, self.conditions, self.decoder.total_frames
        while start < total_frames:
            if self.is_silent(start, min(start + self.decoder.window_frames, total_frames)):
                start += self.decoder.window_frames
                continue
            self._count_window()
            window = self._window(
                start, min(start + self.decoder.window_frames, total_frames), self._text_before(conditions)
            )
            length = window.end - start
            sink = _Certain(self) if streams_tokens else None
            (result,) = await self.decoder.decode([window], sink)
            conditions = self.conditions and result.last_temperature < CONDITION_TEMPERATURE
            if result.is_silent:
                start += length
                continue
            segments, step = split_window(result.token_ids, self.tokens.first_timestamp, start, length)
            self._add(segments, start, result, 0 if sink is None else sink.num_sent)
            start += step

    async def batched(self) -> None:
        """Cut the recording at silences, and decode `BATCH_WINDOWS` windows at a time.

        If the model wrote timestamps, and speech follows the last one of a window, the rest is a further window.
        """
        spans = cut_at_silences(self.decoder.frames, self.decoder.total_frames, self.decoder.window_frames)
        windows = [self._window(start, end, self.prompt) for start, end in spans if not self.is_silent(start, end)]
        self._num_windows = len(windows)
        async for window, result in decode_windows(windows, BATCH_WINDOWS, self.decoder.decode, self._rest):
            if not result.is_silent:
                length = window.end - window.start
                segments = split_whole_window(result.token_ids, self.tokens.first_timestamp, window.start, length)
                self._add(segments, window.start, result)

    def _rest(self, window: Window, result: WindowResult) -> Window | None:
        """The part of a decoded window after its last timestamp, if it has speech. A model may end its text early."""
        end = None if result.is_silent else text_end(result.token_ids, self.tokens.first_timestamp)
        if end is None or end < MIN_REST_FRAMES:
            return None
        start = window.start + end
        if overlap(self.speech, start, window.end) < MIN_REST_FRAMES:
            return None
        self._count_window()
        return self._window(start, window.end, self.prompt)

    def _count_window(self) -> None:
        """Reserve memory for the text of a further window, unless it is reserved already."""
        self._num_windows += 1
        if self._num_windows > self.expected_windows:
            self.reserve(NEW_TOKEN_BYTES * self.decoder.model.info.context_tokens)

    def _text_before(self, conditions: bool) -> list[int]:
        """Token ids of the text before the next window in sequential mode, as `_prepare_decoder_input_ids` of
        transformers computes it.

        conditions: whether the transcript so far follows the prompt; otherwise only the prompt is used.
        """
        if not conditions:
            return self.prompt
        first = self.tokens.first_timestamp
        text = list(self.prompt)
        for segment, _, _ in self.parts:
            ids = segment.tokens
            # The second timestamp of a pair belongs to the next segment.
            text += ids[:-1] if len(ids) > 2 and ids[-2] >= first else ids
        return text

    def _add(self, segments: Sequence[SpeechSegment], start: int, result: WindowResult, num_sent: int = 0) -> None:
        """Add the segments of a window, and stream their text.

        start: first frame of the window. num_sent: number of the window's tokens that were streamed before.
        """
        self.parts += [(segment, start, result) for segment in segments]
        if self.stream is not None:
            kept = [token for segment in segments for token in segment.tokens]
            self.stream.push(self._text_tokens(kept)[num_sent:])

    def _text_tokens(self, token_ids: Sequence[int]) -> list[int]:
        return [token for token in token_ids if token < self.tokens.first_timestamp]


class _Certain:
    """Token sink that streams the text tokens of a window in progress as soon as they are certain to be kept.

    num_sent: number of text tokens that were streamed.
    """

    def __init__(self, transcription: _Transcription) -> None:
        self.num_sent = 0
        self._transcription = transcription
        self._ids: list[int] = []
        self._ends = frozenset(transcription.decoder.params.end_token_ids)

    def __call__(self, token_ids: list[int]) -> None:
        owner = self._transcription
        assert owner.stream is not None
        self._ids += [token for token in token_ids if token not in self._ends]
        certain = certain_tokens(self._ids, owner.tokens.first_timestamp, owner.with_times)
        text = owner._text_tokens(self._ids[:certain])
        owner.stream.push(text[self.num_sent :])
        self.num_sent = max(self.num_sent, len(text))


def _waves(runtime: Runtime, spec: TranscribeSpec, window_frames: int) -> tuple[list[audio.Samples], int]:
    """Decode the recording, and cut it into parts for computing log-mel frames. Returns the parts and the number of
    samples. Raises InvalidRequest."""
    samples = read_samples(runtime, spec)
    return audio.split_samples(samples, window_frames), len(samples)


def _language(spec: TranscribeSpec, tokens: SpeechTokens, model: ServedModel) -> str | None:
    if spec.language is None:
        return None
    code = tokens.language(spec.language)
    if code is None:
        known = ", ".join(tokens.languages) or "en"
        raise InvalidRequest(
            f"`language` is not supported by the model `{model.name}`; it supports {known}", "language"
        )
    return code


def _languages(spec: TranscribeSpec, tokens: SpeechTokens, model: ServedModel) -> list[int]:
    """Token ids of the languages that detection may choose. Raises InvalidRequest for an unsupported language."""
    if not spec.languages:
        return list(tokens.languages.values())
    codes = [tokens.language(name) for name in spec.languages]
    if None in codes:
        known = ", ".join(tokens.languages) or "en"
        raise InvalidRequest(
            f"`languages` has one that the model `{model.name}` does not support; it supports {known}", "languages"
        )
    return [tokens.languages[code] for code in codes if code is not None and code in tokens.languages]


def _seed(spec: TranscribeSpec) -> int:
    """The seed of sampled attempts. For a first temperature of 0 it is fixed, so that the text is always the same."""
    if spec.seed is not None:
        return spec.seed
    return secrets.randbits(63) if spec.attempts[0] else 0


async def _text_ids(
    runtime: Runtime, call: Call, model: ServedModel, tokens: SpeechTokens, text: str, field: str
) -> list[int]:
    """Token ids of a text that precedes windows; empty for an empty text. field: the request's field, for errors.

    Raises InvalidRequest if the model cannot have such a text, or if the text contains a special token.
    """
    if not text.strip():
        return []
    if tokens.previous is None:
        raise InvalidRequest(f"`{field}` is not supported: the model `{model.name}` has no token for it", field)
    (encoding,) = await runtime.encode(
        model.tokenizer, [" " + text.strip()], param=field, add_special_tokens=False, call=call
    )
    if max(encoding.ids) >= tokens.start or model.tokenizer.special_ids.intersection(encoding.ids):
        raise InvalidRequest(f"`{field}` contains a special token", field)
    return encoding.ids


def _params(
    spec: TranscribeSpec,
    model: ServedModel,
    tokens: SpeechTokens,
    rules: FallbackRules,
    with_times: bool,
    stream: bool,
) -> GenerationParams:
    """Decoding parameters of all windows at temperature 0, without sampling."""
    settings = model.text.speech_settings
    return window_params(
        model,
        rules,
        num_beams=1 if spec.attempts[0] else spec.num_beams,
        timestamps=TimestampRules(tokens.first_timestamp, tokens.max_initial) if with_times else None,
        alignment=SpeechAlignment([*settings.alignment_heads], settings.median_width) if spec.with_words else None,
        with_logprobs=spec.with_logprobs,
        stream=stream,
    )
