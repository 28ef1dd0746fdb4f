"""`POST /zero_shot_classify`: which of the client's labels fit a text, by a model that knows what follows from what.

Yin et al. 2019, arXiv:1909.00161: each label becomes a hypothesis, the text is the premise.
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
from server.api.encode import Numbers
from server.api.entailment import entailment
from server.api.generation import text_runs
from server.api.replies import json_response
from server.api.schemas import MAX_ITEMS, ZeroShotClassifyBody
from server.api.state import Model, State, of
from server.errors import ContextLengthExceeded, InvalidRequest
from server.ipc.descriptions import ModelInfo
from server.ipc.messages import Encode, EncodeItem
from server.text.tokenizer import Encoding

router = APIRouter()

ROUTE = "/zero_shot_classify"


@router.post(ROUTE, **operation("zero_shot_classify", ZeroShotClassifyBody))
async def zero_shot_classify(request: Request) -> Response:
    """The client's labels with scores, by falling score: of all labels together, or with `multi_label` each alone."""
    state = of(request)
    body = await read(request, ZeroShotClassifyBody, state.settings.max_body_bytes, state.settings.body_timeout_seconds)
    deadline = state.deadline(request, body.timeout_ms)
    model, classes = _judge(state, body.model)
    texts, labels = [body.inputs] if isinstance(body.inputs, str) else body.inputs, body.candidate_labels
    if len(texts) * len(labels) > MAX_ITEMS:
        text = f"{len(texts)} texts and {len(labels)} labels are more than {MAX_ITEMS} pairs"
        raise InvalidRequest(text, "candidate_labels")
    before, hole, after = (body.hypothesis_template or "This example is {}.").partition("{}")
    if not hole or "{" in before + after or "}" in before + after:
        raise InvalidRequest("`hypothesis_template` has to hold `{}` once, and no other brace", "hypothesis_template")
    items = await _pairs(state, model, texts, [before + label + after for label in labels])
    message = Encode(state.client.next_id(), model.name, "classify", items, deadline=deadline)
    logits = (await encode.vectors(request, state, message, deadline)).reshape(len(texts), len(labels), -1)
    scores = _scores(logits, classes, multi_label=body.multi_label is True)
    answers = [_labels(row, labels) for row in scores]
    return json_response(answers[0] if isinstance(body.inputs, str) else answers)


def _judge(state: State, name: str | None) -> tuple[Model, tuple[int, int]]:
    """The named model, or the first one with a class for entailment; and its two classes."""
    models = state.candidates(name, ("classify",), ROUTE)
    for model in models:
        classes = entailment(model.info.labels)
        if classes is not None:
            return model, classes
    if name is None:
        raise InvalidRequest(f"no loaded model answers {ROUTE}", "model")
    served = ", ".join(models[0].routes())
    raise InvalidRequest(f"`{models[0].name}` has no label for entailment; it answers {served}", "model")


async def _pairs(state: State, model: Model, texts: list[str], hypotheses: list[str]) -> list[EncodeItem]:
    """Every text with every hypothesis; a long text is cut, a hypothesis never."""
    firsts = [text for text in texts for _ in hypotheses]
    encodings = await state.encode(model.tokenizer, firsts, pairs=hypotheses * len(texts), param="inputs")
    return [_item(encoding, model.info) for encoding in encodings]


def _item(encoding: Encoding, info: ModelInfo) -> EncodeItem:
    ids, type_ids, limit = encoding.ids, encoding.type_ids, encode.limit(info)
    excess = len(ids) - limit
    if excess > 0:
        runs = text_runs(encoding)
        start, end = runs[0] if len(runs) > 1 else (0, 0)
        if end - start <= excess:
            text = f"a hypothesis leaves no room for the text: `{info.name}` reads at most {limit} tokens"
            raise ContextLengthExceeded(text, "candidate_labels")
        ids, type_ids = (one[: end - excess] + one[end:] for one in (ids, type_ids))
    return EncodeItem(encode.fitting(ids, info, "inputs"), encode.types(type_ids))


def _scores(logits: Numbers, classes: tuple[int, int], multi_label: bool) -> Numbers:
    """[texts, labels, classes] to [texts, labels]."""
    follows, against = logits[..., classes[0]], logits[..., classes[1]]
    if multi_label or logits.shape[1] == 1:
        return encode.sigmoid(follows - against)
    powers = np.exp(follows - follows.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)


def _labels(scores: Numbers, labels: list[str]) -> list[dict[str, Any]]:
    order = np.argsort(-scores, kind="stable").tolist()
    return [{"label": labels[index], "score": float(scores[index])} for index in order]
