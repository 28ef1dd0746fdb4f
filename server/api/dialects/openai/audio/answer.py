"""Answers of the audio routes: JSON, plain text, subtitles, and streams of text."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Literal

from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope

from server.api.bodies.json_answer import json_response
from server.api.bodies.sse import SERVER_SENT_EVENTS, EventStream, EventWriter, data_frame
from server.api.dialects.openai.audio.form import TranslationForm
from server.api.dialects.openai.common import stream_error
from server.api.entry.rejections import count_error
from server.api.routes.error_shape import AnswerBody
from server.errors import ClientGone, RequestError
from server.ipc.client.call import Call
from server.metrics import Metrics
from server.operations.speech.speech_fallback import text_compression_ratio
from server.operations.speech.transcribe_spec import Transcript
from server.text.speech.speech import SpeechTask, language_name
from server.text.speech.subtitles import SubtitleLine, srt, vtt


class SpokenSegment(AnswerBody):
    """A part of the text with its times in seconds. `seek`: first frame (10 ms each) of the window that contains it.

    `avg_logprob`: mean log-probability of all tokens in the window, timestamp tokens included.
    `no_speech_prob`: probability that the window has no speech.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float | None
    compression_ratio: float
    no_speech_prob: float | None


class WordWithTimes(AnswerBody):
    """A word with its start and end in seconds."""

    word: str
    start: float
    end: float


class SpokenLogprob(AnswerBody):
    """A token of the text with its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class DurationUsage(AnswerBody):
    type: Literal["duration"]
    seconds: int


class TranscriptionAnswer(AnswerBody):
    """The text of a recording. The fields from `task` to `words` need `response_format` verbose_json.

    `logprobs` are present if the request includes them.
    """

    text: str
    usage: DurationUsage
    task: SpeechTask | None = None
    language: str | None = None
    duration: float | None = None
    segments: list[SpokenSegment] | None = None
    words: list[WordWithTimes] | None = None
    logprobs: list[SpokenLogprob] | None = None


def render(
    form: TranslationForm,
    task: SpeechTask,
    transcript: Transcript,
    granularities: Sequence[str] | None,
    with_logprobs: bool,
) -> Response:
    """Render a transcript in the form's `response_format`.

    task: transcribe, or translate to English.
    granularities: parts of the text that get times in verbose_json (`word`, `segment`); None for segments.
    with_logprobs: add the log-probabilities of the tokens to JSON.
    """
    if form.response_format == "srt":
        return PlainTextResponse(srt(transcript.lines))
    if form.response_format == "vtt":
        return PlainTextResponse(vtt(transcript.lines), media_type="text/vtt")
    if form.response_format == "text":
        return PlainTextResponse(transcript.text + "\n")
    answer: dict[str, Any] = {"text": transcript.text, "usage": _usage(transcript)}
    if form.response_format == "verbose_json":
        language = "en" if task == "translate" or transcript.language is None else transcript.language
        answer |= {
            "task": task,
            "language": language_name(language),
            "duration": round(transcript.seconds, 3),
        }
        if not granularities or "segment" in granularities:
            answer["segments"] = _segments(transcript.lines)
        if granularities and "word" in granularities:
            answer["words"] = [
                {"word": word.text, "start": round(word.start, 3), "end": round(word.end, 3)}
                for line in transcript.lines
                for word in line.words
            ]
    return json_response(answer | _logprobs(transcript, with_logprobs))


def _logprobs(transcript: Transcript, is_shown: bool) -> dict[str, Any]:
    if not is_shown:
        return {}
    scored = [(token.data, token.logprob) for token in transcript.logprobs]
    return {
        "logprobs": [
            {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}
            for data, logprob in scored
        ]
    }


def _usage(transcript: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(transcript.seconds)}


def _segments(lines: Sequence[SubtitleLine]) -> list[dict[str, Any]]:
    return [
        {
            "id": index,
            "seek": line.window_frame,
            "start": round(line.start, 3),
            "end": round(line.end, 3),
            "text": line.text,
            "tokens": line.token_ids,
            "temperature": line.temperature,
            "avg_logprob": line.mean_logprob,
            "compression_ratio": text_compression_ratio(line.text),
            "no_speech_prob": line.no_speech_prob,
        }
        for index, line in enumerate(lines)
    ]


async def stream(
    preparing: asyncio.Task[None] | None,
    run: Callable[[Callable[[str], None]], Awaitable[Transcript]],
    call: Call,
    metrics: Metrics,
    scope: Scope,
    with_logprobs: bool = False,
) -> EventStream:
    """Response that streams `transcript.text.delta` events and at the end a `transcript.text.done` event.

    If the model is loaded, waits for the first part of the text, and raises an error that happens before it. Such an
    error still gets its HTTP status.

    preparing: task that loads the model; None if it is loaded.
    run: transcribes, and passes each part of the text to the function that is its argument.
    call: closed at the end of the stream.
    with_logprobs: the last event has the log-probabilities of the tokens.
    """
    parts: asyncio.Queue[str | None] = asyncio.Queue()

    async def transcribe() -> Transcript:
        try:
            if preparing is not None:
                await preparing
            return await run(parts.put_nowait)
        finally:
            parts.put_nowait(None)

    task = asyncio.create_task(transcribe())
    # The stream may end before it has read the result of the task.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    first: str | None = None
    try:
        if preparing is None:
            first = await parts.get()
            if first is None:
                await task
    except BaseException:
        task.cancel()
        raise

    async def events(_: EventWriter) -> AsyncGenerator[bytes, None]:
        metrics.streams_open.inc()
        part = first
        try:
            with call:
                if preparing is not None:
                    yield SERVER_SENT_EVENTS.ping
                    part = await parts.get()
                while part is not None:
                    yield data_frame({"type": "transcript.text.delta", "delta": part})
                    part = await parts.get()
                transcript = await task
                done = {"type": "transcript.text.done", "text": transcript.text, "usage": _usage(transcript)}
                yield data_frame(done | _logprobs(transcript, with_logprobs))
        except ClientGone:
            raise
        except RequestError as error:
            count_error(error, metrics, scope)
            yield stream_error(error, scope["triptych.request_id"])
        finally:
            metrics.streams_open.dec()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, RequestError):
                await task

    return EventStream(events, call.leave)
