"""`POST /generate`: text from a decoder or an encoder-decoder. API.md section 3."""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api import generation, grammar
from server.api.answers import Answer, Delta, Run, TextOptions, best, usage
from server.api.body import read
from server.api.documents import operation
from server.api.replies import reply
from server.api.schemas import GenerateBody, GenerationFields
from server.api.state import Model, State, arrival, cache_salt, of
from server.errors import InvalidRequest
from server.ipc.messages import Generate, GenerateRow, TokenLogprob
from server.ipc.params import GenerationParams
from server.text.languages import Plan
from server.text.token_bytes import TokenBytes

router = APIRouter()


def text_options(body: GenerationFields, token_bytes: TokenBytes | None) -> TextOptions:
    return TextOptions(
        skip_special_tokens=body.skip_special_tokens is not False,
        stop=tuple(body.stop or ()),
        include_stop=bool(body.include_stop),
        token_bytes=token_bytes,
    )


def make_answers(
    model: Model, params: GenerationParams, row: int, options: TextOptions, continues: list[int], echo: str = ""
) -> list[Answer]:
    """The answers that one sequence will give, best first."""
    return [
        Answer(model.tokenizer, params, row, rank, options, continues, echo)
        for rank in range(params.num_return_sequences)
    ]


def tokens_json(token_ids: list[int], logprobs: list[TokenLogprob]) -> list[dict[str, Any]]:
    """The tokens of a `token` event."""
    if not logprobs:
        return [{"id": token_id} for token_id in token_ids]
    return [{"id": entry.token_id, "logprob": entry.logprob} for entry in logprobs]


@router.post("/generate", **operation("generate", GenerateBody))
async def generate(request: Request) -> Response:
    """Continue prompts with a decoder, or answer source texts with an encoder-decoder."""
    state = of(request)
    body = await read(request, GenerateBody, state.settings.max_body_bytes, state.settings.body_timeout_seconds)
    deadline = state.deadline(request, body.timeout_ms)
    model = state.candidates(body.model, ("generate", "translate"), "/generate")[0]
    plan = generation.language_plan(body, model)
    begins = model.info.is_encoder_decoder and body.decoder_prefix is None
    rules, token_bytes = await grammar.prepare(state, model, body.response_format, continues=not begins)
    params, max_new_tokens, seed = generation.resolve(body, model, plan, grammar=rules)
    token_bytes = token_bytes or await grammar.spell_stops(state, model, params)
    prompts = await _prompts(state, model, body, plan)
    echoes = _echoes(model, body, prompts)
    start = generation.decoder_start(body, model, plan)
    options = text_options(body, token_bytes)
    start_tokens = len(generation.bare_start(model, plan))

    rows: list[GenerateRow] = []
    answers: list[list[Answer]] = []
    origins: list[int] = []
    for origin, prompt in enumerate(prompts):
        left = generation.room(model.info, prompt, start, "prompt")
        for index in range(body.candidates):
            continues = start[start_tokens:] if model.info.is_encoder_decoder else prompt
            answers.append(make_answers(model, params, len(rows), options, continues, echoes[origin]))
            # The rows of a prompt read the same text, so only the first one reports its log-probabilities.
            row = GenerateRow(
                state.client.next_id(),
                min(max_new_tokens, left),
                origin,
                start,
                seed=(seed + index) % generation.SEED_LIMIT,
                prompt_logprobs=bool(body.prompt_logprobs) and index == 0,
                text_drops_space=options.drops_space and not continues,
            )
            rows.append(row)
            origins.append(origin)

    message = Generate(model.name, params, prompts, rows, deadline, cache_salt=cache_salt(request))
    generation.limit_attention(message)
    answer_id = f"gen-{uuid.uuid4().hex}"
    run = Run(state.client.submit(message, deadline), answers)
    per_row = params.num_return_sequences
    many = isinstance(body.prompt, list) and not isinstance(body.prompt[0], int)

    def token_events(deltas: list[Delta]) -> list[dict[str, Any]]:
        return [
            {
                "id": answer_id,
                "index": delta.answer.row * per_row + delta.answer.rank,
                "text": delta.text,
                "tokens": tokens_json(delta.token_ids, delta.logprobs),
            }
            for delta in deltas
            if delta.text or delta.token_ids
        ]

    def whole() -> dict[str, Any]:
        flat = [answer for row in answers for answer in row]
        kept = best(flat, body.candidates, body.n or 1) if body.is_ranked else flat
        choices = []
        for index, answer in enumerate(kept):
            choice = _choice(body, index, answer)
            if body.prompt_logprobs:
                choice["prompt_logprobs"] = answer.prompt_logprobs_json(
                    run.prompts[origins[answer.row] * body.candidates]
                )
            if body.return_attention:
                choice["attention"] = answer.alignment_json(prompts[origins[answer.row]])
            if many:
                choice["prompt_index"] = origins[answer.row]
            choices.append(choice)
        made = sum(len(answer.token_ids) for answer in flat)
        return {
            "id": answer_id,
            "model": model.name,
            "choices": choices,
            "usage": usage(sum(map(len, prompts)), made, run.cached_tokens(body.candidates)),
            "seed": seed,
            "timings": run.timings(arrival(request)),
        }

    return await reply(request, state, run, bool(body.stream), token_events, whole)


def _choice(body: GenerateBody, index: int, answer: Answer) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "text": answer.text}
    if body.return_token_ids:
        choice["token_ids"] = answer.token_ids
    choice["finish_reason"] = answer.finish_reason
    choice["stop_reason"] = answer.stop_reason
    if answer.score is not None:
        choice["score"] = answer.score
    if body.logprobs:
        choice["logprobs"] = answer.logprobs_json()
    return choice


def _echoes(model: Model, body: GenerateBody, prompts: list[list[int]]) -> list[str]:
    """What each answer begins with: the prompt as it was written, or what the tokens say that are left of it."""
    if not body.echo:
        return [""] * len(prompts)
    written = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if isinstance(written[0], str) and body.truncate is None:
        return list(written)
    skip = body.skip_special_tokens is not False
    return [model.tokenizer.decode(ids, skip_special_tokens=skip) for ids in prompts]


async def _prompts(state: State, model: Model, body: GenerateBody, plan: Plan) -> list[list[int]]:
    """Token ids of every prompt, shortened where the client allows it."""
    given = body.prompt
    limit = body.truncate
    side = "right" if model.info.is_encoder_decoder else "left"
    leading = list(plan.leading_source_ids)
    if isinstance(given, list) and isinstance(given[0], int):
        given = [given]
    if isinstance(given, list) and isinstance(given[0], list):
        if plan.prefix or plan.trailing_source_ids is not None:
            raise InvalidRequest("`target_lang` of this model goes with text, not with token ids", "target_lang")
        prompts = [generation.check_ids(ids, model.info, "prompt") for ids in given]
        if limit is not None:
            prompts = [ids[:limit] if side == "right" else ids[-limit:] for ids in prompts]
        return [leading + ids for ids in prompts]
    texts = [plan.prefix + text for text in ([given] if isinstance(given, str) else given)]
    own_specials = plan.trailing_source_ids is None
    encodings = await state.encode(model.tokenizer, texts, param="prompt", add_special_tokens=own_specials)
    encodings = [generation.with_languages(encoding, plan) for encoding in encodings]
    if limit is not None:
        encodings = [generation.shorten(encoding, limit, side) for encoding in encodings]
    return [encoding.ids for encoding in encodings]
