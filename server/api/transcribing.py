"""A recording to its text: frames from the worker, then window after window, each beginning where the last one ended.

Windows follow the sequential decoding of `transformers` 5: one temperature, no earlier text but the client's prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from starlette.requests import Request

from server.api.answers import failure
from server.api.encode import matrices
from server.api.replies import attended
from server.api.state import Model, State
from server.audio import frames as audio
from server.errors import DeadlineExceeded
from server.ipc.messages import (
    Encode,
    EncodeItem,
    Failed,
    Finished,
    Generate,
    GenerateRow,
    Hypothesis,
)
from server.ipc.params import GenerationParams
from server.text.speech import SpeechTask, SpeechTokens, SpokenPart, cut

PIECES_AT_ONCE = 8
"""Windows of sound that go to the worker in one message."""


@dataclass(frozen=True)
class Wanted:
    """What a client asks for. language: a code, or None to find out. prompt: tokens of what was said before.

    params, seed: of each window. max_new_tokens: of each window, as far as the context has room.
    """

    task: SpeechTask
    language: str | None
    with_times: bool
    prompt: list[int]
    params: GenerationParams
    max_new_tokens: int
    seed: int


@dataclass(frozen=True)
class HeardPart:
    """A part of the text. window: the frame that its window begins with. mean_logprob: of all tokens of the window."""

    part: SpokenPart
    window: int
    mean_logprob: float | None


@dataclass
class Heard:
    """What was said, in which language, and how many tokens it took."""

    language: str | None
    parts: list[HeardPart] = field(default_factory=list)
    made_tokens: int = 0


async def transcribe(
    request: Request,
    state: State,
    model: Model,
    tokens: SpeechTokens,
    sound: audio.Samples,
    wanted: Wanted,
    deadline: float,
) -> Heard:
    """The whole text. Raises the request's error when the worker fails, or when the deadline comes before the end."""
    window_frames = audio.FRAMES_PER_TOKEN * model.info.source_tokens
    frames = await _frames(request, state, model, sound, window_frames, deadline)
    total = min(audio.num_frames(sound), len(frames))

    async def run(start: int, prefix: list[int], params: GenerationParams, max_new_tokens: int) -> Hypothesis:
        heard = audio.window(frames, start, window_frames).astype("<f4").tobytes()
        row = GenerateRow(state.client.next_id(), max_new_tokens, decoder_token_ids=prefix, seed=wanted.seed)
        message = Generate(model.name, params, [], [row], deadline, heard)
        return await _finished(request, state, message, deadline)

    language = wanted.language
    if language is None and tokens.languages:
        only = GenerationParams(allowed_token_ids=sorted(tokens.languages.values()))
        (found,) = (await run(0, [tokens.start], only, 1)).token_ids
        language = next(code for code, token in tokens.languages.items() if token == found)
    result = Heard(language)
    prefix = tokens.prefix(language, wanted.task, wanted.with_times, wanted.prompt)
    room = model.info.context_tokens - len(prefix)
    start = 0
    while start < total:
        heard = await run(start, prefix, wanted.params, min(wanted.max_new_tokens, room))
        logprobs = [entry.logprob for entry in heard.logprobs or ()]
        result.made_tokens += len(heard.token_ids)
        text = heard.token_ids[:-1] if heard.stop_token_id is not None else heard.token_ids
        num_frames = min(window_frames, total - start)
        parts, step = cut(text, tokens.first_time, start, num_frames)
        mean = float(np.mean(logprobs)) if logprobs else None
        result.parts += [HeardPart(part, start, mean) for part in parts]
        start += step
    return result


async def _frames(
    request: Request, state: State, model: Model, sound: audio.Samples, window_frames: int, deadline: float
) -> audio.Frames:
    pieces = await state.in_thread(lambda: audio.pieces(sound, window_frames))
    found: list[audio.Frames] = []
    for at in range(0, len(pieces), PIECES_AT_ONCE):
        items = [EncodeItem([], samples=piece.astype("<f4").tobytes()) for piece in pieces[at : at + PIECES_AT_ONCE]]
        message = Encode(state.client.next_id(), model.name, "log_mel", items, deadline=deadline)
        found += await matrices(request, state, message, deadline)
    return await state.in_thread(lambda: audio.join(found))


async def _finished(request: Request, state: State, message: Generate, deadline: float) -> Hypothesis:
    """The one answer to a sequence; a text that the deadline cut short is none."""
    with state.client.submit(message, deadline) as call:
        async with attended(request, call.leave):
            while events := await call.events():
                for _, event in events:
                    if isinstance(event, Failed):
                        raise failure(event)
                    if isinstance(event, Finished):
                        best = event.hypotheses[0]
                        if best.finish_reason == "timeout":
                            raise DeadlineExceeded("the deadline passed before the recording was heard to its end")
                        return best
    raise AssertionError("a sequence ends with an event")
