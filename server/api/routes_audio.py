"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`: a recording to its text. API.md section 6."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from server.api import transcripts
from server.api.documents import operation
from server.api.form import read_form
from server.api.replies import json_response
from server.api.speech_schemas import TranscriptionForm, TranslationForm
from server.api.state import Model, State, of
from server.api.transcribing import Heard, Wanted, transcribe
from server.audio.frames import FRAMES_PER_SECOND, FRAMES_PER_TOKEN, SAMPLE_RATE, Samples
from server.audio.resample import resample
from server.audio.wav import AudioError, read_wav
from server.errors import InvalidRequest, Overloaded
from server.ipc.params import GenerationParams, TimestampRules
from server.text.speech import SpeechTask, SpeechTokens, english

router = APIRouter()

_LISTS = frozenset({"timestamp_granularities"})
_TIMED = frozenset({"verbose_json", "srt", "vtt"})


@router.post("/v1/audio/transcriptions", **operation("transcriptions", TranscriptionForm, "multipart/form-data"))
async def transcriptions(request: Request) -> Response:
    """Write down what is said in a recording, in the language it is said in."""
    with _taken_in(of(request)):
        return await _answer(request, TranscriptionForm, "transcribe")


@router.post("/v1/audio/translations", **operation("translations", TranslationForm, "multipart/form-data"))
async def translations(request: Request) -> Response:
    """Write down in English what is said in a recording."""
    with _taken_in(of(request)):
        return await _answer(request, TranslationForm, "translate")


@contextmanager
def _taken_in(state: State) -> Iterator[None]:
    """While inside, one more recording may lie in memory. Raises Overloaded for one too many, before a byte is read."""
    if state.recordings >= state.settings.max_recordings:
        raise Overloaded(f"{state.recordings} recordings are being heard already; try again soon", retry_after=1)
    state.recordings += 1
    try:
        yield
    finally:
        state.recordings -= 1


async def _answer(request: Request, schema: type[TranslationForm], task: SpeechTask) -> Response:
    state = of(request)
    settings = state.settings
    body, file = await read_form(request, schema, _LISTS, settings.max_audio_bytes, settings.audio_timeout_seconds)
    deadline = state.deadline(request, body.timeout_ms)
    route = "/v1/audio/translations" if task == "translate" else "/v1/audio/transcriptions"
    model = state.candidates(body.model, ("transcribe",), route)[0]
    tokens = model.text.speech
    assert tokens is not None, "a model that transcribes has tokens of speech"
    if task == "translate" and not tokens.translates:
        raise InvalidRequest(f"the model `{model.name}` knows English alone; it does not translate", "model")
    _refuse(body)
    language = _language(body, tokens, model)
    sound = await state.in_thread(lambda: _sound(file, settings.max_audio_seconds))
    seconds = len(sound) / SAMPLE_RATE
    window_seconds = model.info.source_tokens * FRAMES_PER_TOKEN / FRAMES_PER_SECOND
    with_times = body.response_format in _TIMED or seconds > window_seconds
    prompt = await _prompt(state, model, tokens, body.prompt)
    max_new_tokens = model.info.generation.max_new_tokens or model.info.context_tokens
    seed = body.seed if body.seed is not None else secrets.randbits(63)
    params = _params(body, model, tokens, with_times)
    wanted = Wanted(task, language, with_times, prompt, params, max_new_tokens, seed)
    heard = await transcribe(request, state, model, tokens, sound, wanted, deadline)
    return _written(body, task, model, tokens, heard, seconds)


def _refuse(body: TranslationForm) -> None:
    """Raises InvalidRequest for what is known and not built, or has no effect beside the rest."""
    if body.stream:
        raise InvalidRequest("`stream` is not supported for recordings", "stream")
    granularities = body.timestamp_granularities if isinstance(body, TranscriptionForm) else None
    if granularities and "word" in granularities:
        raise InvalidRequest(
            "`timestamp_granularities`: word is not supported, only segment", "timestamp_granularities"
        )
    if granularities and body.response_format != "verbose_json":
        raise InvalidRequest(
            "`timestamp_granularities` needs `response_format` verbose_json", "timestamp_granularities"
        )
    if body.temperature and (body.num_beams or 1) > 1:
        raise InvalidRequest("`num_beams` cannot be combined with a `temperature`", "num_beams")


def _language(body: TranslationForm, tokens: SpeechTokens, model: Model) -> str | None:
    if not isinstance(body, TranscriptionForm) or body.language is None:
        return None
    code = tokens.language(body.language)
    if code is None:
        known = ", ".join(tokens.languages) or "en"
        raise InvalidRequest(f"the model `{model.name}` does not know this `language`; it knows {known}", "language")
    return code


def _sound(file: bytes, max_seconds: float) -> Samples:
    try:
        samples, rate = read_wav(file, max_seconds)
    except AudioError as error:
        raise InvalidRequest(str(error), "file") from None
    return resample(samples, rate, SAMPLE_RATE)


async def _prompt(state: State, model: Model, tokens: SpeechTokens, text: str | None) -> list[int]:
    """The end of an earlier text, at most half of the context, the token before it included."""
    if not text or not text.strip():
        return []
    if tokens.previous is None:
        raise InvalidRequest(f"the model `{model.name}` has no token for a `prompt`", "prompt")
    (encoding,) = await state.encode(model.tokenizer, [" " + text.strip()], param="prompt", add_special_tokens=False)
    if max(encoding.ids) >= tokens.start or model.tokenizer.special_ids.intersection(encoding.ids):
        raise InvalidRequest("`prompt` spells a special token", "prompt")
    return encoding.ids[-(model.info.context_tokens // 2 - 1) :]


def _params(body: TranslationForm, model: Model, tokens: SpeechTokens, with_times: bool) -> GenerationParams:
    """One window's decoding: the checkpoint's settings, and the client's temperature or beams."""
    said = model.info.generation
    sample = bool(body.temperature)
    return GenerationParams(
        do_sample=sample,
        temperature=body.temperature if body.temperature else 1.0,
        suppress_token_ids=said.suppress_token_ids,
        begin_suppress_token_ids=said.begin_suppress_token_ids,
        bad_words_ids=said.bad_words_ids,
        end_token_ids=said.end_token_ids,
        num_beams=1 if sample else body.num_beams or said.num_beams or 1,
        length_penalty=1.0 if said.length_penalty is None else said.length_penalty,
        early_stopping=said.early_stopping or False,
        repetition_penalty=said.repetition_penalty or 1.0,
        no_repeat_ngram_size=said.no_repeat_ngram_size or 0,
        timestamps=TimestampRules(tokens.first_time, tokens.max_initial) if with_times else None,
        logprobs=body.response_format == "verbose_json",
    )


def _written(
    body: TranslationForm, task: SpeechTask, model: Model, tokens: SpeechTokens, heard: Heard, seconds: float
) -> Response:
    lines = [
        transcripts.Line(
            min(one.part.start, seconds),
            min(one.part.end, seconds),
            transcripts.words_of(one.part.tokens, tokens, model.tokenizer),
            one.part.tokens,
            one.window,
            one.mean_logprob,
        )
        for one in heard.parts
    ]
    spoken = [line for line in lines if line.text.strip()]
    if body.response_format == "srt":
        return PlainTextResponse(transcripts.srt(spoken))
    if body.response_format == "vtt":
        return PlainTextResponse(transcripts.vtt(spoken), media_type="text/vtt")
    all_tokens = [token for one in heard.parts for token in one.part.tokens]
    text = transcripts.words_of(all_tokens, tokens, model.tokenizer).strip()
    if body.response_format == "text":
        return PlainTextResponse(text + "\n")
    answer: dict[str, Any] = {"text": text, "usage": {"type": "duration", "seconds": math.ceil(seconds)}}
    if body.response_format == "verbose_json":
        language = "en" if task == "translate" or heard.language is None else heard.language
        answer |= {
            "task": task,
            "language": english(language),
            "duration": round(seconds, 3),
            "segments": transcripts.segments_json(spoken, body.temperature or 0.0),
        }
    return json_response(answer)
