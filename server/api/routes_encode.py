"""`POST /embed`, `POST /embed_all` and `POST /classify`: vectors and labels from an encoder. API.md section 5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api import encode
from server.api.body import read
from server.api.documents import operation
from server.api.encode import Numbers
from server.api.replies import json_response
from server.api.schemas import ClassifyBody, EmbedAllBody, EmbedBody
from server.api.state import Model, State, of
from server.errors import InvalidRequest, RequestTooLarge
from server.ipc.descriptions import ModelInfo
from server.ipc.messages import Encode, EncodeItem

router = APIRouter()

MAX_NUMBERS = 1 << 24
"""Numbers of one `/embed_all` answer: 64 MiB from the worker, and about three times that as JSON."""


@router.post("/embed", **operation("embed", EmbedBody))
async def embed(request: Request) -> Response:
    """A vector for each text."""
    state = of(request)
    body = await read(request, EmbedBody, state.settings.max_body_bytes, state.settings.body_timeout_seconds)
    deadline = state.deadline(request, body.timeout_ms)
    model = state.candidates(body.model, ("embed",), "/embed")[0]
    own_size = model.info.embedding_size if body.pooling is None else 0
    _check_dimensions(body, own_size or model.info.hidden_size)
    items = await _embed_items(state, model, body)
    message = Encode(
        state.client.next_id(),
        model.name,
        "embed",
        items,
        pooling=body.pooling,
        normalize=body.normalize is not False and body.dimensions is None,
        deadline=deadline,
    )
    return _numbers(_cut(await encode.vectors(request, state, message, deadline), body))


@router.post("/embed_all", **operation("embed_all", EmbedAllBody))
async def embed_all(request: Request) -> Response:
    """A vector for each token of each text, special tokens included."""
    state = of(request)
    body = await read(request, EmbedAllBody, state.settings.max_body_bytes, state.settings.body_timeout_seconds)
    deadline = state.deadline(request, body.timeout_ms)
    model = state.candidates(body.model, ("embed",), "/embed_all")[0]
    _check_dimensions(body, model.info.hidden_size)
    items = await _embed_items(state, model, body)
    numbers = sum(len(item.token_ids) for item in items) * model.info.hidden_size
    if numbers > MAX_NUMBERS:
        text = f"`inputs` asks for {numbers} numbers; the limit of one answer is {MAX_NUMBERS}"
        raise RequestTooLarge(text, "inputs")
    message = Encode(
        state.client.next_id(),
        model.name,
        "embed_tokens",
        items,
        normalize=body.normalize is not False and body.dimensions is None,
        deadline=deadline,
    )
    matrices = [_cut(one, body) for one in await encode.matrices(request, state, message, deadline)]
    return await state.in_thread(lambda: _numbers(matrices))


def _check_dimensions(body: EmbedAllBody, size: int) -> None:
    if body.dimensions is not None and body.dimensions > size:
        text = f"`dimensions` {body.dimensions} is more than the model's {size}"
        raise InvalidRequest(text, "dimensions")


def _cut(vectors: Numbers, body: EmbedAllBody) -> Numbers:
    """[n, hidden] to [n, `dimensions`], at unit length again unless that is not wanted."""
    if body.dimensions is None:
        return vectors
    vectors = vectors[:, : body.dimensions]
    if body.normalize is not False:
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.maximum(norms, np.finfo(np.float32).tiny)
    return np.ascontiguousarray(vectors)


def _numbers(value: Numbers | list[Numbers]) -> Response:
    return Response(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


async def _embed_items(state: State, model: Model, body: EmbedAllBody) -> list[EncodeItem]:
    """Every input as ids: texts with the prompt that was named, if any, and id lists as they are."""
    given = body.inputs
    inputs = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    prompt = model.text.prompt(body.prompt_name)
    if body.prompt_name is not None and any(isinstance(one, list) for one in inputs):
        raise InvalidRequest("`prompt_name` does not go with token ids", "prompt_name")
    texts = [prompt + one for one in inputs if isinstance(one, str)]
    truncate, side = body.truncate is not False, body.truncation_direction or "right"
    prompted = iter(await encode.prompted_items(state, model, texts, prompt, truncate, side, "inputs"))
    items = []
    for one in inputs:
        if isinstance(one, str):
            items.append(next(prompted))
        else:
            ids = one
            if truncate:
                limit = encode.limit(model.info)
                ids = ids[:limit] if side == "right" else ids[-limit:]
            items.append(EncodeItem(encode.fitting(ids, model.info, "inputs")))
    return items


@router.post("/classify", **operation("classify", ClassifyBody))
@router.post("/predict", include_in_schema=False)
async def classify(request: Request) -> Response:
    """Labels with scores, by falling score, for a text, a pair of texts, or a list of either."""
    state = of(request)
    body = await read(request, ClassifyBody, state.settings.max_body_bytes, state.settings.body_timeout_seconds)
    deadline = state.deadline(request, body.timeout_ms)
    model = state.candidates(body.model, ("classify",), "/classify")[0]
    if body.raw_scores and body.function_to_apply not in (None, "none"):
        raise InvalidRequest("`raw_scores` does not go with `function_to_apply`", "raw_scores")
    items = await _classify_items(state, model, body)
    message = Encode(state.client.next_id(), model.name, "classify", items, deadline=deadline)
    logits = await encode.vectors(request, state, message, deadline)
    function = "none" if body.raw_scores else body.function_to_apply or _usual_function(model.info)
    answers = [_labels(row, model.info, body.top_k) for row in _apply(function, logits)]
    return json_response(answers[0] if isinstance(body.inputs, str) else answers)


async def _classify_items(state: State, model: Model, body: ClassifyBody) -> list[EncodeItem]:
    """Every input as ids, in order; single texts and pairs are encoded apart, because the tokenizer wants it so."""
    given = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    inputs = [(one,) if isinstance(one, str) else tuple(one) for one in given]
    singles = [one[0] for one in inputs if len(one) == 1]
    firsts = [one[0] for one in inputs if len(one) == 2]
    seconds = [one[1] for one in inputs if len(one) == 2]
    truncate, side = body.truncate is not False, body.truncation_direction or "right"
    single = iter(await encode.text_items(state, model, singles, truncate, side, "inputs"))
    paired = iter(await encode.pair_items(state, model, firsts, seconds, truncate, side, "inputs"))
    return [next(single if len(one) == 1 else paired) for one in inputs]


def _usual_function(info: ModelInfo) -> str:
    """What the checkpoint's kind of problem calls for."""
    if info.problem_type == "regression":
        return "none"
    if info.problem_type == "multi_label_classification" or len(info.labels) == 1:
        return "sigmoid"
    return "softmax"


def _apply(function: str, logits: Numbers) -> Numbers:
    if function == "softmax":
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)
    if function == "sigmoid":
        return encode.sigmoid(logits)
    return logits


def _labels(scores: Numbers, info: ModelInfo, top_k: int | None) -> list[dict[str, Any]]:
    order: Sequence[int] = np.argsort(-scores, kind="stable")[:top_k].tolist()
    return [{"label": info.labels[index], "score": float(scores[index])} for index in order]
