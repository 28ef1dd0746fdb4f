"""`POST /similarity`: how near the meanings of texts are, by the cosine of their vectors. API.md section 5."""

from __future__ import annotations

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api import encode
from server.api.body import read
from server.api.documents import operation
from server.api.replies import json_response
from server.api.schemas import SimilarityBody
from server.api.state import of
from server.ipc.messages import Encode

router = APIRouter()


@router.post("/similarity", **operation("similarity", SimilarityBody))
async def similarity(request: Request) -> Response:
    """The cosine between the source sentence and each of the others, from -1 to 1, in their order."""
    state = of(request)
    body = await read(request, SimilarityBody, state.settings.max_body_bytes, state.settings.body_timeout_seconds)
    deadline = state.deadline(request, body.timeout_ms)
    model = state.candidates(body.model, ("embed",), "/similarity")[0]
    prompt = model.text.prompt(body.prompt_name)
    texts = [prompt + text for text in (body.inputs.source_sentence, *body.inputs.sentences)]
    truncate, side = body.truncate is not False, body.truncation_direction or "right"
    items = await encode.prompted_items(state, model, texts, prompt, truncate, side, "inputs")
    message = Encode(
        state.client.next_id(),
        model.name,
        "embed",
        items,
        normalize=True,
        deadline=deadline,
    )
    source, *others = (await encode.vectors(request, state, message, deadline)).astype(np.float64)
    return json_response([min(1.0, max(-1.0, float(source @ other))) for other in others])
