"""`POST /embed` and `POST /classify`: vectors and labels from an encoder. API.md section 5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from server.api import generation
from server.api.answers import failure
from server.api.body import read
from server.api.documents import operation
from server.api.replies import attended, json_response
from server.api.schemas import ClassifyBody, EmbedBody
from server.api.state import Model, State, of
from server.errors import ContextLengthExceeded, InvalidRequest
from server.ipc.client import Call
from server.ipc.messages import Encode, Encoded, EncodeItem, Failed, ModelInfo
from server.text.tokenizer import Encoding

router = APIRouter()

Vector = NDArray[np.float32]


@router.post("/embed", **operation("embed", EmbedBody))
async def embed(request: Request) -> Response:
    """A vector for each text."""
    state = of(request)
    body = await read(request, EmbedBody, state.settings.max_body_bytes, state.settings.body_timeout_seconds)
    deadline = state.deadline(request, body.timeout_ms)
    model = state.candidates(body.model, ("embed",), "/embed")[0]
    hidden = model.info.hidden_size
    if body.dimensions is not None and body.dimensions > hidden:
        raise InvalidRequest(f"`dimensions` {body.dimensions} is more than the model's {hidden}", "dimensions")
    items = await _embed_items(state, model, body)
    message = Encode(
        state.client.next_id(),
        model.name,
        "embed",
        items,
        pooling=body.pooling or model.info.pooling,
        normalize=body.normalize is not False and body.dimensions is None,
        deadline=deadline,
    )
    vectors = await _values(request, state, message, deadline)
    if body.dimensions is not None:
        vectors = vectors[:, : body.dimensions]
        if body.normalize is not False:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(norms, np.finfo(np.float32).tiny)
    content = orjson.dumps(np.ascontiguousarray(vectors), option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, media_type="application/json")


async def _embed_items(state: State, model: Model, body: EmbedBody) -> list[EncodeItem]:
    """Every input as ids: texts with the prompt that was named, if any, and id lists as they are."""
    given = body.inputs
    inputs = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    prompt = _prompt(model, body.prompt_name)
    if body.prompt_name is not None and any(isinstance(one, list) for one in inputs):
        raise InvalidRequest("`prompt_name` does not go with token ids", "prompt_name")
    texts = [prompt + one for one in inputs if isinstance(one, str)]
    encodings = iter(await state.encode(model.tokenizer, texts, param="inputs") if texts else [])
    truncate, side = body.truncate is not False, body.truncation_direction or "right"
    items = []
    for one in inputs:
        if isinstance(one, str):
            items.append(_item(next(encodings), model.info, truncate, side))
        else:
            ids = one
            if truncate:
                limit = _limit(model.info)
                ids = ids[:limit] if side == "right" else ids[-limit:]
            items.append(EncodeItem(_fitting(ids, model.info)))
    return items


def _prompt(model: Model, name: str | None) -> str:
    """The checkpoint's prompt of that name (sentence-transformers), its default one without a name, or nothing."""
    prompts = model.text.prompts
    if name is None:
        return prompts.default
    if name not in prompts.by_name:
        names = ", ".join(sorted(prompts.by_name)) or "none"
        raise InvalidRequest(f"`prompt_name` is not one of the checkpoint's prompts ({names})", "prompt_name")
    return prompts.by_name[name]


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
    logits = await _values(request, state, message, deadline)
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
    single = iter(await state.encode(model.tokenizer, singles, param="inputs") if singles else [])
    paired = iter(await state.encode(model.tokenizer, firsts, pairs=seconds, param="inputs") if firsts else [])
    truncate, side = body.truncate is not False, body.truncation_direction or "right"
    return [_item(next(single if len(one) == 1 else paired), model.info, truncate, side) for one in inputs]


def _item(encoding: Encoding, info: ModelInfo, truncate: bool, side: str) -> EncodeItem:
    if truncate:
        encoding = generation.shorten(encoding, _limit(info), side)
    ids = _fitting(encoding.ids, info)
    return EncodeItem(ids, encoding.type_ids if any(encoding.type_ids) else None)


def _fitting(ids: list[int], info: ModelInfo) -> list[int]:
    if not ids:
        raise InvalidRequest("`inputs` holds a text without any token", "inputs")
    if len(ids) > _limit(info):
        raise ContextLengthExceeded(
            f"`inputs` holds a text of {len(ids)} tokens; `{info.name}` reads at most {_limit(info)}", "inputs"
        )
    return generation.check_ids(ids, info, "inputs")


def _limit(info: ModelInfo) -> int:
    """Longest text in tokens."""
    return (info.source_tokens if info.is_encoder_decoder else 0) or info.context_tokens


async def _values(request: Request, state: State, message: Encode, deadline: float) -> NDArray[np.float32]:
    """[items, width]: what the engine says of each item, in order."""
    found: list[Vector | None] = [None] * len(message.items)
    with state.client.submit([message], deadline) as call:
        async with attended(request, call.leave):
            await _collect(call, found)
    return np.stack([one for one in found if one is not None])


async def _collect(call: Call, found: list[Vector | None]) -> None:
    while events := await call.events():
        for _, event in events:
            if isinstance(event, Failed):
                raise failure(event)
            if isinstance(event, Encoded):
                found[event.index] = np.frombuffer(event.values, dtype="<f4")


def _usual_function(info: ModelInfo) -> str:
    """What the checkpoint's kind of problem calls for."""
    if info.problem_type == "regression":
        return "none"
    if info.problem_type == "multi_label_classification" or len(info.labels) == 1:
        return "sigmoid"
    return "softmax"


def _apply(function: str, logits: NDArray[np.float32]) -> NDArray[np.float32]:
    if function == "softmax":
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)
    if function == "sigmoid":
        return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)), dtype=np.float32)
    return logits


def _labels(scores: Vector, info: ModelInfo, top_k: int | None) -> list[dict[str, Any]]:
    order: Sequence[int] = np.argsort(-scores, kind="stable")[:top_k].tolist()
    return [{"label": info.labels[index], "score": float(scores[index])} for index in order]
