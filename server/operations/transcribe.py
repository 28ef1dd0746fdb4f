"""Speech to text: log-mel frames from the worker, then window after window, each starting where the last one ended.

Windows follow the sequential decoding of transformers 5, with a single temperature. The text of earlier windows is not
part of the prompt; only the prompt of the request is.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

import numpy as np

from server.audio import frames as audio
from server.audio.frames import FRAMES_PER_SECOND, FRAMES_PER_TOKEN, SAMPLE_RATE
from server.audio.resample import resample
from server.audio.wav import AudioError, read_wav
from server.audio.wav import max_size as wav_size
from server.errors import DeadlineExceeded, InvalidRequest
from server.ipc.call import Call, request_error
from server.ipc.logprobs import Logprobs
from server.ipc.messages import Encode, EncodeItem, Failed, Finished, Generate, GenerateRow, Hypothesis
from server.ipc.params import GenerationParams, TimestampRules
from server.operations.cost import Cost
from server.operations.encode import matrices
from server.operations.runtime import Runtime, ServedModel
from server.text.speech import SpeechSegment, SpeechTask, SpeechTokens, split_window
from server.text.subtitles import SubtitleLine
from server.text.tokenizer import Tokenizer

_SAMPLE_BYTES = 12
"""Memory per sample of the file while it is resampled: once in float32, once in float64."""
WAVES_PER_MESSAGE = 8
"""Parts of the recording that go to the worker in one message."""


@dataclass(frozen=True)
class TranscribeSpec:
    """Ask for the text of a recording.

    wav: the bytes of a WAV file.
    max_seconds: longest recording that is accepted.
    task: write in the language that is spoken, or translate to English.
    language: code or English name of the spoken language; None to detect it.
    prompt: text that came before the recording.
    temperature: 0 for the likeliest text.
    with_times: compute the times of each part. Recordings longer than one window always need them.
    with_logprobs: compute mean log-probabilities.
    """

    wav: bytes
    max_seconds: float
    task: SpeechTask = "transcribe"
    model: str | None = None
    language: str | None = None
    prompt: str = ""
    temperature: float = 0.0
    num_beams: int | None = None
    seed: int | None = None
    with_times: bool = False
    with_logprobs: bool = False

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the work; see `Cost`. A window starts at least one encoder token after the last one."""
        samples, seconds = wav_size(self.wav)
        seconds = min(self.max_seconds, seconds)
        recording = 3 * len(self.wav) + _SAMPLE_BYTES * samples + math.ceil(seconds * audio.SECOND_BYTES)
        frames = math.ceil(seconds * FRAMES_PER_SECOND) + FRAMES_PER_TOKEN * model.info.source_tokens
        windows = 2 + math.ceil(frames / FRAMES_PER_TOKEN)
        sequences = windows * (self.num_beams or model.info.generation.num_beams or 1)
        context = model.info.context_tokens
        return Cost(
            len(self.prompt),
            windows * (model.info.source_tokens + context) + frames,
            sequences,
            sequences * context,
            recording_bytes=recording,
        )


@dataclass(frozen=True)
class Transcript:
    """The text of a recording.

    text: white space at both ends removed.
    language: code of the spoken language, or None if the model supports only English.
    seconds: length of the recording.
    lines: the parts of the text that are not empty, with times.
    """

    text: str
    language: str | None
    seconds: float
    lines: list[SubtitleLine]


async def transcribe(runtime: Runtime, call: Call, spec: TranscribeSpec) -> Transcript:
    """The text of a recording.

    Raises InvalidRequest for an option that the model lacks or a file that is not a readable recording, the error of a
    failed sequence, and DeadlineExceeded if the deadline passes before the last window is complete.
    """
    operation = "translate_speech" if spec.task == "translate" else "transcribe"
    model = runtime.candidates(spec.model, operation)[0]
    tokens = model.text.speech
    assert tokens is not None, "a model that transcribes has speech tokens"
    if spec.temperature and (spec.num_beams or 1) > 1:
        raise InvalidRequest("`num_beams` cannot be combined with a `temperature`", "num_beams")
    language = _language(spec, tokens, model)
    runtime.admission.admit(call, model, spec.cost(model), "file")
    window_frames = FRAMES_PER_TOKEN * model.info.source_tokens
    waves, num_samples = await runtime.pools.audio.run(lambda: _waves(spec, window_frames), call)
    seconds = num_samples / SAMPLE_RATE
    with_times = spec.with_times or seconds > window_frames / FRAMES_PER_SECOND
    prompt = await _prompt_ids(runtime, call, model, tokens, spec.prompt)
    params = _params(spec, model, tokens, with_times)
    seed = spec.seed if spec.seed is not None else secrets.randbits(63)
    frames = await _frames(runtime, call, model, waves)
    total_frames = min(audio.num_frames(num_samples), len(frames))

    if language is None and tokens.languages:
        only = GenerationParams(allowed_token_ids=sorted(tokens.languages.values()))
        row = GenerateRow(call.next_id(), 1, decoder_token_ids=[tokens.start])
        (found,) = (await _generate(call, model, frames, 0, row, only)).token_ids
        language = next(code for code, token in tokens.languages.items() if token == found)
    prefix = tokens.prefix(language, spec.task, with_times, prompt)
    context = model.info.context_tokens
    max_new_tokens = min(model.info.generation.max_new_tokens or context, context - len(prefix))
    parts: list[tuple[SpeechSegment, int, float | None]] = []
    start = 0
    while start < total_frames:
        row = GenerateRow(call.next_id(), max_new_tokens, decoder_token_ids=prefix, seed=seed)
        best = await _generate(call, model, frames, start, row, params)
        logprobs = list(Logprobs(best.logprobs or ()).own())
        mean = float(np.mean(logprobs)) if logprobs else None
        text = best.token_ids[:-1] if best.stop_token_id is not None else best.token_ids
        found_parts, step = split_window(text, tokens.first_timestamp, start, min(window_frames, total_frames - start))
        parts += [(part, start, mean) for part in found_parts]
        start += step
    return _transcript(parts, language, seconds, tokens, model.tokenizer)


async def _frames(runtime: Runtime, call: Call, model: ServedModel, waves: list[audio.Samples]) -> audio.Frames:
    """Log-mel frames of the whole recording, computed by the worker. Removes the waves, to free their memory."""
    found: list[audio.Frames] = []
    while waves:
        items = [EncodeItem([], samples=wave.astype("<f4").tobytes()) for wave in waves[:WAVES_PER_MESSAGE]]
        del waves[:WAVES_PER_MESSAGE]
        found += await matrices(call, Encode(call.next_id(), model.name, "log_mel", items, deadline=call.deadline))
    return await runtime.pools.audio.run(lambda: audio.join_log_mel(found), call)


async def _generate(
    call: Call, model: ServedModel, frames: audio.Frames, start: int, row: GenerateRow, params: GenerationParams
) -> Hypothesis:
    """The best hypothesis for the window that starts at frame `start`."""
    window = audio.window(frames, start, FRAMES_PER_TOKEN * model.info.source_tokens).astype("<f4").tobytes()
    call.submit(Generate(model.name, params, [], [row], call.deadline, window))
    while events := await call.events():
        for _, event in events:
            if isinstance(event, Failed):
                raise request_error(event)
            if isinstance(event, Finished):
                best = event.hypotheses[0]
                if best.finish_reason == "timeout":
                    raise DeadlineExceeded("the deadline passed before the end of the recording was transcribed")
                return best
    raise AssertionError("a sequence ends with an event")


def _waves(spec: TranscribeSpec, window_frames: int) -> tuple[list[audio.Samples], int]:
    """The parts of the recording for the log-mel computation, and the number of its samples."""
    try:
        samples, rate = read_wav(spec.wav, spec.max_seconds)
    except AudioError as error:
        raise InvalidRequest(str(error), "file") from None
    samples = resample(samples, rate, SAMPLE_RATE)
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


def _params(spec: TranscribeSpec, model: ServedModel, tokens: SpeechTokens, with_times: bool) -> GenerationParams:
    """Decoding parameters of one window: the checkpoint's defaults with the request's temperature or beams."""
    defaults = model.info.generation
    sample = bool(spec.temperature)
    return GenerationParams(
        do_sample=sample,
        temperature=spec.temperature or 1.0,
        suppress_token_ids=defaults.suppress_token_ids,
        begin_suppress_token_ids=defaults.begin_suppress_token_ids,
        bad_words_ids=defaults.bad_words_ids,
        end_token_ids=defaults.end_token_ids,
        num_beams=1 if sample else spec.num_beams or defaults.num_beams or 1,
        length_penalty=1.0 if defaults.length_penalty is None else defaults.length_penalty,
        early_stopping=defaults.early_stopping or False,
        repetition_penalty=defaults.repetition_penalty or 1.0,
        no_repeat_ngram_size=defaults.no_repeat_ngram_size or 0,
        timestamps=TimestampRules(tokens.first_timestamp, tokens.max_initial) if with_times else None,
        logprobs=spec.with_logprobs,
    )


def _transcript(
    parts: list[tuple[SpeechSegment, int, float | None]],
    language: str | None,
    seconds: float,
    tokens: SpeechTokens,
    tokenizer: Tokenizer,
) -> Transcript:
    """Join the segments of all windows.

    parts: (segment, first frame of its window, mean log-probability of its window).
    """

    def text_of(token_ids: list[int]) -> str:
        """The text without time tokens and other special tokens."""
        return tokenizer.decode(
            [token for token in token_ids if token < tokens.first_timestamp], skip_special_tokens=True
        )

    lines = [
        SubtitleLine(
            min(part.start, seconds), min(part.end, seconds), text_of(part.tokens), part.tokens, window_frame, mean
        )
        for part, window_frame, mean in parts
    ]
    text = text_of([token for part, _, _ in parts for token in part.tokens]).strip()
    return Transcript(text, language, seconds, [line for line in lines if line.text.strip()])
