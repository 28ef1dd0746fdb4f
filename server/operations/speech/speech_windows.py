"""Decode windows of a recording, one after another or several at once. Rejected windows are decoded again at a higher
temperature."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from server.audio import frames as audio
from server.audio.frames import FRAMES_PER_TOKEN
from server.audio.token_times import token_times
from server.errors import DeadlineExceeded
from server.ipc.client.call import Call, request_error
from server.ipc.wire.generate_messages import Finished, Generate, GenerateRow, Tokens
from server.ipc.wire.logprobs import Logprobs
from server.ipc.wire.params import GenerationParams, PromptProbe, SpeechAlignment, TimestampRules
from server.ipc.wire.step_messages import Failed
from server.operations.pools import Pool
from server.operations.served_model import ServedModel
from server.operations.speech.speech_fallback import FallbackRules, Verdict

TokenSink = Callable[[list[int]], None]
"""Function that is called with the new tokens of a window while they are generated."""
_MAX_SEED = (1 << 64) - 1


@dataclass(frozen=True)
class WindowResult:
    """The decoded tokens of one window.

    token_ids: new tokens, without the end token.
    temperature: temperature of the attempt whose result is used.
    last_temperature: temperature of the last attempt, which is higher if every attempt was rejected.
    is_silent: whether the window has no speech, so that its tokens must be dropped.
    mean_logprob: mean log-probability of the tokens, including the end token; None if not computed.
    no_speech_prob: probability that the window has no speech; None if not computed.
    token_times: time at which each token ends, in seconds from the start of the window; empty if not computed.
    token_logprobs: log-probability of each token; empty if not computed.
    """

    token_ids: list[int]
    temperature: float
    is_silent: bool = False
    mean_logprob: float | None = None
    no_speech_prob: float | None = None
    token_times: Sequence[float] = ()
    token_logprobs: Sequence[float] = ()
    last_temperature: float = 0.0


@dataclass(frozen=True)
class Window:
    """A window to decode.

    start, end: range of the recording, in frames; `end` is exclusive.
    prefix: token ids of the decoder's prompt. start_index: index of the start token in it.
    """

    start: int
    end: int
    prefix: list[int]
    start_index: int = 0

    @property
    def recorded_tokens(self) -> int:
        """Number of encoder positions that belong to the recording rather than to padding."""
        return max((self.end - self.start) // FRAMES_PER_TOKEN, 1)


@dataclass
class WindowDecoder:
    """Decodes windows of one recording.

    frames: log-mel frames of the recording, and of the silence that pads a short recording to a window.
    total_frames: number of frames of the recording, without that silence.
    params: decoding parameters for temperature 0.
    rules: temperatures to try, and thresholds that reject a window.
    seed: seed of sampled attempts.
    pool: threads for computing the times of tokens.
    probe_token: id of the token for no speech, if its probability is needed; otherwise None.
    text: returns the text of token ids, without timestamps and other special tokens.
    """

    call: Call
    model: ServedModel
    frames: audio.Frames
    total_frames: int
    params: GenerationParams
    rules: FallbackRules
    seed: int
    pool: Pool
    probe_token: int | None = None
    text: Callable[[Sequence[int]], str] = lambda token_ids: ""

    @property
    def window_frames(self) -> int:
        return FRAMES_PER_TOKEN * self.model.info.source_tokens

    async def decode(self, windows: Sequence[Window], sink: TokenSink | None = None) -> list[WindowResult]:
        """Decode windows at the same time, and return their results in order.

        sink: receives the tokens while they are generated. Only for a single window, and rules that accept everything.
        Raises the error of a failed sequence, and DeadlineExceeded.
        """
        attempts: list[list[tuple[WindowResult, Verdict]]] = [[] for _ in windows]
        waiting = list(range(len(windows)))
        for number, temperature in enumerate(self.rules.temperatures):
            ended = await self._generate([windows[index] for index in waiting], number, temperature, sink)
            for index, event in zip(waiting, ended, strict=True):
                earlier = [result.mean_logprob for result, _ in attempts[index]]
                attempts[index].append(await self._judge(windows[index], event, temperature, earlier))
            waiting = [index for index in waiting if attempts[index][-1][1].kind == "rejected"]
            if not waiting:
                break
        return [
            dataclasses.replace(best_attempt(found), last_temperature=found[-1][0].temperature) for found in attempts
        ]

    async def first_token(self, window: Window, allowed: Sequence[int]) -> int:
        """The likeliest first token of a window among `allowed`, used to detect the language."""
        row = GenerateRow(self.call.next_id(), 1, 0, window.prefix)
        params, source = GenerationParams(allowed_token_ids=[*allowed]), self._source(window)
        (ended,) = await finished_rows(self.call, Generate(self.model.name, params, [], [row], frames=[source]))
        return ended.hypotheses[0].token_ids[0]

    async def _generate(
        self, windows: Sequence[Window], attempt: int, temperature: float, sink: TokenSink | None
    ) -> list[Finished]:
        """Decode windows once, and return their `Finished` events in order. attempt: number of earlier attempts."""
        context, limit = self.model.info.context_tokens, self.model.info.generation.max_new_tokens
        rows = [
            GenerateRow(
                self.call.next_id(),
                min(limit or context, context - len(window.prefix)),
                place,
                window.prefix,
                (self.seed + attempt) & _MAX_SEED,
                recorded_tokens=window.recorded_tokens,
            )
            for place, window in enumerate(windows)
        ]
        params = self.params
        if temperature > 0:
            params = sampled(params, temperature)
        if self.probe_token is not None:
            params = replace(params, probe=PromptProbe(windows[0].start_index, self.probe_token))
        sources = [self._source(window) for window in windows]
        return await finished_rows(self.call, Generate(self.model.name, params, [], rows, frames=sources), sink)

    def _source(self, window: Window) -> bytes:
        """The frames of a window for an engine message, padded with zeros to the length of the model's window.

        Frames of the recording after the window's end are left out.
        """
        frames = self.frames if window.end >= self.total_frames else self.frames[: window.end]
        return audio.window(frames, window.start, self.window_frames).astype("<f4").tobytes()

    async def _judge(
        self, window: Window, event: Finished, temperature: float, earlier_logprobs: Sequence[float | None]
    ) -> tuple[WindowResult, Verdict]:
        """Convert the final event of a window to its result. Returns it, and the verdict of the rules.

        earlier_logprobs: mean log-probabilities of the rejected attempts to decode the window.
        """
        best = event.hypotheses[0]
        logprobs = list(Logprobs(best.logprobs or ()).own())
        mean = float(np.mean(logprobs)) if logprobs else None
        no_speech = None if event.probe_logprob is None else math.exp(event.probe_logprob)
        verdict = self.rules.verdict(
            best.token_ids,
            self.model.info.vocab_size,
            mean,
            no_speech,
            lambda: self.text(best.token_ids).strip(),
            earlier_logprobs,
        )
        times: Sequence[float] = ()
        if best.attention is not None:
            weights, count = best.attention, len(best.token_ids)
            times = await self.pool.run(lambda: token_times(weights, window.recorded_tokens, count), self.call)
        token_ids = best.token_ids[:-1] if best.stop_token_id is not None else best.token_ids
        return WindowResult(token_ids, temperature, verdict.kind == "silent", mean, no_speech, times, logprobs), verdict


def best_attempt(attempts: Sequence[tuple[WindowResult, Verdict]]) -> WindowResult:
    """The attempt whose text is used: the last attempt, or if all are rejected, the attempt with the least excess.

    attempts: the attempts to decode one window, in order, with their verdicts.
    """
    last, verdict = attempts[-1]
    if verdict.kind != "rejected":
        return last
    return min(attempts, key=lambda attempt: attempt[1].excess)[0]


async def finished_rows(call: Call, message: Generate, sink: TokenSink | None = None) -> list[Finished]:
    """Generate the rows of a message, and return their `Finished` events in the same order.

    sink: receives the new tokens of a message with one row.
    Raises the error of a failed sequence, and DeadlineExceeded.
    """
    call.submit(message)
    ended: dict[int, Finished] = {}
    while events := await call.events():
        for index, event in events:
            if isinstance(event, Failed):
                raise request_error(event)
            if isinstance(event, Tokens) and sink is not None:
                sink(event.token_ids)
            if isinstance(event, Finished):
                if event.hypotheses[0].finish_reason == "timeout":
                    raise DeadlineExceeded("the deadline passed before the end of the recording was transcribed")
                ended[index] = event
    return [ended[index] for index in range(len(message.rows))]


def sampled(params: GenerationParams, temperature: float) -> GenerationParams:
    """Decoding parameters for an attempt with sampling, which has one beam.

    params: parameters for temperature 0. temperature: above 0.
    """
    return replace(params, do_sample=True, temperature=temperature, num_beams=1)


def window_params(
    model: ServedModel,
    rules: FallbackRules,
    *,
    num_beams: int | None,
    timestamps: TimestampRules | None,
    alignment: SpeechAlignment | None,
    with_logprobs: bool,
    stream: bool,
) -> GenerationParams:
    """Decoding parameters of a window at temperature 0: the checkpoint's defaults, and settings of the request.

    num_beams: None for the checkpoint's default. timestamps: None for text without timestamps.
    alignment: None if no times of tokens are needed.
    """
    defaults = model.info.generation
    return GenerationParams(
        suppress_token_ids=defaults.suppress_token_ids,
        begin_suppress_token_ids=defaults.begin_suppress_token_ids,
        bad_words_ids=defaults.bad_words_ids,
        end_token_ids=defaults.end_token_ids,
        num_beams=num_beams or defaults.num_beams or 1,
        length_penalty=1.0 if defaults.length_penalty is None else defaults.length_penalty,
        early_stopping=defaults.early_stopping or False,
        repetition_penalty=defaults.repetition_penalty or 1.0,
        no_repeat_ngram_size=defaults.no_repeat_ngram_size or 0,
        timestamps=timestamps,
        logprobs=with_logprobs or rules.needs_logprobs,
        processed_logprobs=True,
        stream=stream,
        alignment=alignment,
    )
