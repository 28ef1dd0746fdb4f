"""Speech to text: log-mel frames from the worker, then the text of each window.

Sequential mode: each window starts where the text of the last one ended, as in `transformers` 5. Batched mode: the
recording is cut at silences, and several windows are decoded at the same time.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from server.audio import frames as audio
from server.audio.frames import FRAMES_PER_SECOND, FRAMES_PER_TOKEN, SAMPLE_RATE
from server.audio.read import read_audio
from server.audio.silence import cut_at_silences
from server.audio.wav import AudioError
from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.messages import Encode, EncodeItem
from server.ipc.wire.params import GenerationParams, SpeechAlignment, TimestampRules
from server.operations.cost import NEW_TOKEN_BYTES
from server.operations.encode import matrices
from server.operations.runtime import Runtime, ServedModel
from server.operations.speech.speech_fallback import CONDITION_TEMPERATURE, FallbackRules
from server.operations.speech.speech_windows import Window, WindowDecoder, WindowResult, window_params
from server.operations.speech.transcribe_ctc import transcribe_ctc
from server.operations.speech.transcribe_spec import BATCH_WINDOWS, TranscribeSpec, Transcript
from server.operations.speech.transcript_text import TextStream, lines_of, transcript_text
from server.text.speech.speech import SpeechSegment, SpeechTokens, certain_tokens, split_whole_window, split_window

WAVES_PER_MESSAGE = 8
"""Parts of the recording that go to the worker in one message."""


async def transcribe(
    runtime: Runtime, call: Call, spec: TranscribeSpec, emit: Callable[[str], None] | None = None
) -> Transcript:
    """The text of a recording.

    emit: receives each part of the text as soon as it is final. All parts together are the text of the result.
    Raises InvalidRequest for an option that the model lacks or a file that is not a readable recording, the error of a
    failed sequence, and DeadlineExceeded if the deadline passes before the last window is complete.
    """
    operation = "translate_speech" if spec.task == "translate" else "transcribe"
    model = runtime.candidates(spec.model, operation)[0]
    if model.text.ctc is not None:
        return await transcribe_ctc(runtime, call, model, model.text.ctc, spec, emit)
    tokens = model.text.speech
    assert tokens is not None, "a model that transcribes has speech tokens"
    spec.check()
    language = _language(spec, tokens, model)
    runtime.admission.check_size(spec.cost(model), "file")
    prompt = await _prompt_ids(runtime, call, model, tokens, spec.prompt)
    window_frames = FRAMES_PER_TOKEN * model.info.source_tokens
    # The memory for reading is not reserved: one recording is read at a time.
    async with runtime.recordings.turn(call, call.limits, "earlier recordings were read"):
        waves, num_samples = await runtime.pools.audio.run(lambda: _waves(runtime, spec, window_frames), call)
        seconds = num_samples / SAMPLE_RATE
        runtime.admission.check_size(spec.cost(model, seconds), "file")
        spec.file.drop()
        await runtime.admission.admit_in_turn(call, model, spec.cost_after_reading(model, seconds), "file")
        frames = await _frames(runtime, call, model, waves)
    total_frames = min(audio.num_frames(num_samples), len(frames))

    settings, rules = model.text.speech_settings, spec.rules(model.text.speech_settings)
    with_times = spec.with_times or spec.batched or seconds > window_frames / FRAMES_PER_SECOND
    streams_tokens = emit is not None and rules.accepts_everything and not spec.batched
    decoder = WindowDecoder(
        call,
        model,
        frames,
        total_frames,
        _params(spec, model, tokens, rules, with_times, streams_tokens),
        rules,
        spec.seed if spec.seed is not None else secrets.randbits(63),
        runtime.pools.tokenize,
        tokens.no_speech if rules.no_speech is not None or spec.with_logprobs else None,
    )
    if language is None and tokens.languages:
        first = Window(0, min(window_frames, total_frames), [tokens.start])
        found = await decoder.first_token(first, sorted(tokens.languages.values()))
        language = next(code for code, token in tokens.languages.items() if token == found)
    condition = spec.condition_on_previous_text
    transcription = _Transcription(
        decoder,
        tokens,
        tokens.prefix(language, spec.task, with_times),
        prompt,
        with_times=with_times,
        conditions=not spec.batched and (settings.condition_on_previous_text if condition is None else condition),
        stream=None if emit is None else TextStream(model.tokenizer, emit),
        expected_windows=spec.expected_windows(model, seconds),
        reserve=lambda num_bytes: runtime.admission.extend(call, num_bytes, "text", "file"),
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
        lambda: lines_of(parts, seconds, tokens, model.tokenizer, spoken, spec.with_words), call
    )
    return Transcript(transcript_text(parts, tokens, model.tokenizer), language, seconds, lines)


@dataclass
class _Transcription:
    """The text of a recording, window after window.

    request_prefix: the decoder's prompt from the start token on.
    prompt: token ids of the request's prompt.
    conditions: the text so far precedes each window.
    stream: receives tokens whose text is final; None if nothing is streamed.
    parts: the segments so far, each with the window that it was decoded from and its first frame.
    expected_windows: number of windows whose memory is reserved. reserve: reserves the memory of one more.
    """

    decoder: WindowDecoder
    tokens: SpeechTokens
    request_prefix: list[int]
    prompt: list[int]
    with_times: bool
    conditions: bool
    stream: TextStream | None = None
    parts: list[tuple[SpeechSegment, int, WindowResult]] = field(default_factory=list)
    expected_windows: int = 0
    reserve: Callable[[int], None] = lambda num_bytes: None

    def _window(self, start: int, end: int, before: Sequence[int]) -> Window:
        """A window with its decoder prompt. before: tokens of the text that precedes it."""
        if not before or self.tokens.previous is None:
            return Window(start, end, self.request_prefix)
        return Window(start, end, [self.tokens.previous, *before, *self.request_prefix], 1 + len(before))

    async def sequential(self, streams_tokens: bool) -> None:
        """Decode windows that each start where the text of the last one ends.

        streams_tokens: pass tokens on before the end of their window.
        """
        start, conditions, total_frames = 0, self.conditions, self.decoder.total_frames
        num_windows = 0
        while start < total_frames:
            num_windows += 1
            if num_windows > self.expected_windows:
                self.reserve(NEW_TOKEN_BYTES * self.decoder.model.info.context_tokens)
            window = self._window(
                start, min(start + self.decoder.window_frames, total_frames), self._text_before(conditions)
            )
            length = window.end - start
            sink = _Certain(self) if streams_tokens else None
            (result,) = await self.decoder.decode([window], sink)
            conditions = self.conditions and result.temperature < CONDITION_TEMPERATURE
            if result.is_silent:
                start += length
                continue
            segments, step = split_window(result.token_ids, self.tokens.first_timestamp, start, length)
            self._add(segments, start, result, 0 if sink is None else sink.num_sent)
            start += step

    async def batched(self) -> None:
        """Cut the recording at silences, and decode `BATCH_WINDOWS` windows at a time."""
        spans = cut_at_silences(self.decoder.frames, self.decoder.total_frames, self.decoder.window_frames)
        windows = [self._window(start, end, self.prompt) for start, end in spans]
        for first in range(0, len(windows), BATCH_WINDOWS):
            some = windows[first : first + BATCH_WINDOWS]
            for window, result in zip(some, await self.decoder.decode(some), strict=True):
                if not result.is_silent:
                    length = window.end - window.start
                    segments = split_whole_window(result.token_ids, self.tokens.first_timestamp, window.start, length)
                    self._add(segments, window.start, result)

    def _text_before(self, conditions: bool) -> list[int]:
        """Earlier text that conditions the next window of the sequential mode: the prompt and the transcript so far.

        conditions: whether the transcript is used; otherwise only the prompt is.
        As in `_prepare_decoder_input_ids` of transformers.
        """
        if not conditions:
            return self.prompt
        first = self.tokens.first_timestamp
        text = list(self.prompt)
        for segment, _, _ in self.parts:
            ids = segment.tokens
            # The second timestamp of a pair belongs to the next segment.
            text += ids[:-1] if len(ids) > 2 and ids[-2] >= first else ids
        return text[-(self.decoder.model.info.context_tokens // 2 - 1) :]

    def _add(self, segments: Sequence[SpeechSegment], start: int, result: WindowResult, num_sent: int = 0) -> None:
        """Keep the segments of a window. num_sent: its tokens that were streamed already."""
        self.parts += [(segment, start, result) for segment in segments]
        if self.stream is not None:
            kept = [token for segment in segments for token in segment.tokens]
            self.stream.push(self._text_tokens(kept)[num_sent:])

    def _text_tokens(self, token_ids: Sequence[int]) -> list[int]:
        return [token for token in token_ids if token < self.tokens.first_timestamp]


class _Certain:
    """Passes on those text tokens of a window in progress that are certain to be kept.

    num_sent: number of text tokens passed on.
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


async def _frames(runtime: Runtime, call: Call, model: ServedModel, waves: list[audio.Samples]) -> audio.Frames:
    """Log-mel frames of the whole recording, computed by the worker. Removes the waves, to free their memory."""
    found: list[audio.Frames] = []
    while waves:
        items = [EncodeItem([], samples=wave.astype("<f4").tobytes()) for wave in waves[:WAVES_PER_MESSAGE]]
        del waves[:WAVES_PER_MESSAGE]
        found += await matrices(call, Encode(call.next_id(), model.name, "log_mel", items))
    return await runtime.pools.audio.run(lambda: audio.join_log_mel(found), call)


def _waves(runtime: Runtime, spec: TranscribeSpec, window_frames: int) -> tuple[list[audio.Samples], int]:
    """The parts of the recording for the log-mel computation, and the number of its samples."""
    try:
        samples = read_audio(spec.file.data, spec.max_seconds, runtime.audio_decoder)
    except AudioError as error:
        raise InvalidRequest(str(error), "file") from None
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


async def _prompt_ids(runtime: Runtime, call: Call, model: ServedModel, tokens: SpeechTokens, text: str) -> list[int]:
    """Token ids of the request's `prompt`, without the first ones if it is too long.

    The ids and the special token that precedes them take at most half of the context.
    """
    if not text.strip():
        return []
    if tokens.previous is None:
        raise InvalidRequest(f"`prompt` is not supported: the model `{model.name}` has no token for it", "prompt")
    (encoding,) = await runtime.encode(
        model.tokenizer, [" " + text.strip()], param="prompt", add_special_tokens=False, call=call
    )
    if max(encoding.ids) >= tokens.start or model.tokenizer.special_ids.intersection(encoding.ids):
        raise InvalidRequest("`prompt` contains a special token", "prompt")
    return encoding.ids[-(model.info.context_tokens // 2 - 1) :]


def _params(
    spec: TranscribeSpec,
    model: ServedModel,
    tokens: SpeechTokens,
    rules: FallbackRules,
    with_times: bool,
    stream: bool,
) -> GenerationParams:
    """Decoding parameters of the windows."""
    settings = model.text.speech_settings
    return window_params(
        model,
        rules,
        num_beams=1 if spec.temperature else spec.num_beams,
        timestamps=TimestampRules(tokens.first_timestamp, tokens.max_initial) if with_times else None,
        alignment=SpeechAlignment([*settings.alignment_heads], settings.median_width) if spec.with_words else None,
        with_logprobs=spec.with_logprobs,
        stream=stream,
    )
