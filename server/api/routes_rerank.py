"""`POST /rerank`: texts by how well they answer a query, as a cross-encoder reads both at once. API.md section 5.

Nogueira and Cho 2019, arXiv:1901.04085: query and text as one pair, one logit for the pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api import encode
from server.api.body import read
from server.api.documents import operation
from server.api.replies import json_response
from server.api.schemas import RerankBody
from server.api.state import of
from server.ipc.messages import Encode

router = APIRouter()


@router.post("/rerank", **operation("rerank", RerankBody))
async def rerank(request: Request) -> Response:
    """The texts' places in the list by falling score: from 0 to 1, or the logit with `raw_scores`."""
    state = of(request)
    body = await read(request, RerankBody, state.settings.max_body_bytes, state.settings.body_timeout_seconds)
    deadline = state.deadline(request, body.timeout_ms)
    model = state.candidates(body.model, ("rerank",), "/rerank")[0]
    truncate, side = body.truncate is not False, body.truncation_direction or "right"
    queries = [body.query] * len(body.texts)
    items = await encode.pair_items(state, model, queries, body.texts, truncate, side, "texts")
    message = Encode(state.client.next_id(), model.name, "classify", items, deadline=deadline)
    logits = (await encode.vectors(request, state, message, deadline))[:, 0]
    scores = logits if body.raw_scores else encode.sigmoid(logits)
    ranked: list[dict[str, Any]] = []
    for index in np.argsort(-logits, kind="stable").tolist():
        one = {"index": index, "score": float(scores[index])}
        ranked.append(one | {"text": body.texts[index]} if body.return_text else one)
    return json_response(ranked)
