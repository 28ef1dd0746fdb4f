"""`POST /token_classify`: names of people, places and other things in a text. API.md section 5."""

from __future__ import annotations

from itertools import chain
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api import encode
from server.api.body import read
from server.api.documents import operation
from server.api.encode import Numbers
from server.api.entities import entities, pieces, without_overlaps
from server.api.generation import text_runs
from server.api.replies import json_response
from server.api.schemas import TokenClassifyBody
from server.api.state import Model, of
from server.api.windows import Window, room, window_item, windows
from server.errors import InvalidRequest
from server.ipc.messages import Encode
from server.text.tokenizer import Encoding

router = APIRouter()

STRIDE = 64


@router.post("/token_classify", **operation("token_classify", TokenClassifyBody))
@router.post("/ner", include_in_schema=False)
async def token_classify(request: Request) -> Response:
    """The entities of each text, with their places in it; nested for a list of texts."""
    state = of(request)
    body = await read(request, TokenClassifyBody, state.settings.max_body_bytes, state.settings.body_timeout_seconds)
    deadline = state.deadline(request, body.timeout_ms)
    model = state.candidates(body.model, ("token_classify",), "/token_classify")[0]
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    encodings = await state.encode(model.tokenizer, texts, param="inputs", offsets=True)
    cut = [_windows(model, encoding, body.stride) for encoding in encodings]
    items = [window_item(encoding, one) for encoding, many in zip(encodings, cut, strict=True) for one in many]
    for item in items:
        encode.fitting(item.token_ids, model.info, "inputs")
    message = Encode(state.client.next_id(), model.name, "classify_tokens", items, deadline=deadline)
    logits = iter(await encode.matrices(request, state, message, deadline))

    def find(text: str, encoding: Encoding, many: list[Window], scores: list[Numbers]) -> list[dict[str, Any]]:
        strategy, labels = body.aggregation_strategy or "simple", model.info.labels
        tokens = [pieces(text, encoding, *one, model.tokenizer) for one in zip(many, scores, strict=True)]
        found = list(chain.from_iterable(entities(one, strategy, labels, model.tokenizer) for one in tokens))
        return without_overlaps(found) if len(many) > 1 else found

    parts = [
        (text, encoding, many, [next(logits) for _ in many])
        for text, encoding, many in zip(texts, encodings, cut, strict=True)
    ]
    answers = await state.in_thread(lambda: [find(*part) for part in parts])
    return json_response(answers[0] if isinstance(body.inputs, str) else answers)


def _windows(model: Model, encoding: Encoding, stride: int | None) -> list[Window]:
    """Raises InvalidRequest for windows that overlap so much that they would not move on."""
    limit = encode.limit(model.info)
    runs = text_runs(encoding) or [(0, 0)]
    run = (runs[0][0], runs[-1][1])
    width = room(encoding, run, limit)
    if stride is not None and stride >= width:
        raise InvalidRequest(f"`stride` {stride} has to be less than the {width} tokens of a window", "stride")
    return windows(encoding, run, limit, min(STRIDE, width // 2) if stride is None else stride)
