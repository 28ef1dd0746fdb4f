"""`POST /tokenize` and `POST /detokenize`: text to ids and back, by any loaded model's tokenizer. API.md section 5."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api import generation
from server.api.body import read
from server.api.documents import operation
from server.api.replies import json_response
from server.api.schemas import DetokenizeBody, TokenizeBody
from server.api.state import of
from server.text.tokenizer import Encoding

router = APIRouter()


@router.post("/tokenize", **operation("tokenize", TokenizeBody))
async def tokenize(request: Request) -> Response:
    """The tokens of each text, with their places in it."""
    state = of(request)
    body = await read(request, TokenizeBody, state.settings.max_body_bytes, state.settings.body_timeout_seconds)
    model = state.any_model(body.model)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    encodings = await state.encode(
        model.tokenizer,
        texts,
        param="inputs",
        add_special_tokens=body.add_special_tokens is not False,
        offsets=True,
    )
    pairs = list(zip(texts, encodings, strict=True))
    return json_response(await state.in_thread(lambda: [_tokens(text, encoding) for text, encoding in pairs]))


def _tokens(text: str, encoding: Encoding) -> list[dict[str, Any]]:
    rows = zip(encoding.ids, encoding.tokens, encoding.offsets, encoding.special, strict=True)
    return [
        {"id": token_id, "text": token if special else text[start:end], "start": start, "end": end, "special": special}
        for token_id, token, (start, end), special in rows
    ]


@router.post("/detokenize", **operation("detokenize", DetokenizeBody))
async def detokenize(request: Request) -> Response:
    """The text of each list of ids."""
    state = of(request)
    body = await read(request, DetokenizeBody, state.settings.max_body_bytes, state.settings.body_timeout_seconds)
    model = state.any_model(body.model)
    lists = [body.ids] if isinstance(body.ids[0], int) else body.ids
    for ids in lists:
        generation.check_ids(ids, model.info, "ids")
    skip = body.skip_special_tokens is not False
    return json_response(await state.in_thread(lambda: [model.tokenizer.decode(ids, skip) for ids in lists]))
