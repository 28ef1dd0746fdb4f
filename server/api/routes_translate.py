"""`POST /translate`: text from one language to another with an encoder-decoder. API.md section 4."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api import generation, grammar, segments
from server.api.answers import Answer, Delta, Run, usage
from server.api.body import read
from server.api.documents import operation
from server.api.replies import reply
from server.api.routes_generate import make_answers, text_options, tokens_json
from server.api.schemas import TranslateBody
from server.api.segments import Segment, Segments
from server.api.state import Model, State, arrival, of
from server.errors import InvalidRequest
from server.ipc.messages import Generate, GenerateRow
from server.text.languages import Plan, UnknownPair

router = APIRouter()


@router.post("/translate", **operation("translate", TranslateBody))
async def translate(request: Request) -> Response:
    """Translate texts, sentence by sentence unless told otherwise."""
    state = of(request)
    body = await read(request, TranslateBody, state.settings.max_body_bytes, state.settings.body_timeout_seconds)
    deadline = state.deadline(request, body.timeout_ms)
    model, plan = _choose(state, body)
    alternatives = body.num_alternatives or 0
    _refuse(body)
    rules, token_bytes = await grammar.prepare(
        state, model, body.response_format, continues=body.decoder_prefix is not None
    )
    params, max_new_tokens, seed = generation.resolve(body, model, plan, min_beams=alternatives + 1, grammar=rules)
    if params.num_beams < alternatives + 1:
        raise InvalidRequest(
            f"`num_alternatives` {alternatives} needs `num_beams` of at least {alternatives + 1}", "num_alternatives"
        )
    params = msgspec.structs.replace(params, num_return_sequences=alternatives + 1)
    token_bytes = token_bytes or await grammar.spell_stops(state, model, params)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    jobs = [Segments(pieces) for pieces in await _split(state, model, body, plan, texts)]
    places = [(job, index) for job in jobs for index, segment in enumerate(job.segments) if segment.text.strip()]
    sources = await _sources(state, model, body, plan, [job.segments[index].text for job, index in places])

    bare = generation.bare_start(model, plan)
    prefixed = generation.decoder_start(body, model, plan)
    options = text_options(body, token_bytes)
    rows: list[GenerateRow] = []
    answers: list[list[Answer]] = []
    begun: set[int] = set()
    for (job, index), source in zip(places, sources, strict=True):
        segment = job.segments[index]
        start = bare if id(job) in begun else prefixed
        if id(job) not in begun:
            segment.before = body.decoder_prefix or ""
        begun.add(id(job))
        left = generation.room(model.info, source, start, "inputs")
        drops_space = options.drops_space and len(start) == len(bare)
        segment.answers = make_answers(model, params, len(rows), options, start[len(bare) :])
        answers.append(segment.answers)
        row = GenerateRow(
            state.client.next_id(),
            min(max_new_tokens, left),
            len(rows),
            start,
            seed=seed,
            text_drops_space=drops_space,
        )
        rows.append(row)

    message = Generate(model.name, params, sources, rows, deadline)
    generation.limit_attention(message)
    answer_id = f"tr-{uuid.uuid4().hex}"
    run = Run(state.client.submit(message, deadline), answers)

    def token_events(deltas: list[Delta]) -> list[dict[str, Any]]:
        for delta in deltas:
            if delta.answer.rank == 0:
                job, index = places[delta.answer.row]
                job.add(index, delta)
        return [
            {
                "id": answer_id,
                "index": number,
                "segment": piece.segment,
                "text": piece.text,
                "tokens": tokens_json(piece.token_ids, piece.logprobs),
            }
            for number, job in enumerate(jobs)
            for piece in job.release()
        ]

    def whole() -> dict[str, Any]:
        made = sum(len(answer.token_ids) for row in answers for answer in row)
        return {
            "id": answer_id,
            "model": model.name,
            "translations": [_translation(body, plan, job, sources) for job in jobs],
            "usage": usage(sum(map(len, sources)), made, run.cached_tokens()),
            "seed": seed,
            "timings": run.timings(arrival(request)),
        }

    return await reply(request, state, run, bool(body.stream), token_events, whole)


def _refuse(body: TranslateBody) -> None:
    if body.n not in (None, 1):
        raise InvalidRequest("`n` is not for translations; use `num_alternatives`", "n")
    if body.split_sentences and body.has_format:
        raise InvalidRequest(
            "`split_sentences` does not go with `response_format`, which is about the whole text", "split_sentences"
        )
    if body.best_of not in (None, 1):
        raise InvalidRequest("`best_of` is not for translations; beam search keeps the best", "best_of")
    if body.num_return_sequences not in (None, 1):
        raise InvalidRequest(
            "`num_return_sequences` is not for translations; use `num_alternatives`", "num_return_sequences"
        )


def _choose(state: State, body: TranslateBody) -> tuple[Model, Plan]:
    """The first model that offers the pair. Raises InvalidRequest that lists what there is."""
    candidates = state.candidates(body.model, ("translate",), "/translate")
    reasons = []
    for model in candidates:
        try:
            return model, model.text.languages.match(body.source_lang, body.target_lang)
        except UnknownPair as error:
            reasons.append((model.name, str(error)))
    text = reasons[0][1] if len(reasons) == 1 else "; ".join(f"{name}: {reason}" for name, reason in reasons)
    raise InvalidRequest(text, "target_lang")


async def _split(state: State, model: Model, body: TranslateBody, plan: Plan, texts: list[str]) -> list[list[Segment]]:
    if body.split_sentences is False or body.has_format:
        return [segments.whole(text) for text in texts]
    state.check_characters(texts, "inputs")
    limit = model.info.source_tokens

    def fits(text: str) -> bool:
        if not limit or len(text) < limit // 2:
            return True
        own_specials = plan.trailing_source_ids is None
        encoded = model.tokenizer.encode([plan.prefix + text], add_special_tokens=own_specials, offsets=False)[0]
        return len(generation.with_languages(encoded, plan).ids) <= limit

    target = plan.target_lang or body.target_lang
    return await state.in_thread(lambda: [segments.split(text, target, fits) for text in texts])


async def _sources(state: State, model: Model, body: TranslateBody, plan: Plan, texts: list[str]) -> list[list[int]]:
    """Token ids of every segment, with what asks for the target language before them."""
    if not texts:
        return []
    prefixed, own_specials = [plan.prefix + text for text in texts], plan.trailing_source_ids is None
    encodings = await state.encode(model.tokenizer, prefixed, param="inputs", add_special_tokens=own_specials)
    encodings = [generation.with_languages(encoding, plan) for encoding in encodings]
    if body.truncate is not None:
        encodings = [generation.shorten(encoding, body.truncate, "right") for encoding in encodings]
    return [encoding.ids for encoding in encodings]


def _translation(body: TranslateBody, plan: Plan, job: Segments, sources: list[list[int]]) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "text": job.text(0),
        "source_lang": plan.source_lang or body.source_lang,
        "target_lang": plan.target_lang or body.target_lang,
        "score": job.score(0),
        "alternatives": [{"text": job.text(rank), "score": job.score(rank)} for rank in range(1, job.ranks)],
        "finish_reason": job.finish_reason(),
    }
    if body.return_token_ids:
        answer["token_ids"] = [token_id for one in job.best() for token_id in one.token_ids]
    if body.logprobs:
        answer["logprobs"] = [entry for one in job.best() for entry in one.logprobs_json()]
    if body.return_attention:
        answer["attention"] = [one.alignment_json(sources[one.row]) for one in job.best()]
    return answer
